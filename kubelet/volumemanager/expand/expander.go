// Package expand does the node's part in the expansion of volumes: it expands the file system of a volume whose
// PersistentVolume is larger than its claim's status says, and writes the progress into that status.
//
// A resizer first makes the volume itself larger and sets the stage of the claim (status.allocatedResourceStatuses) to
// NodeResizePending. If several nodes share the volume, each has to expand it, also after one of them has updated the
// claim.
package expand

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

// The reasons of the events about expansion.
const (
	ReasonSuccessful = "FileSystemResizeSuccessful"
	ReasonFailed     = "FileSystemResizeFailed"
)

// Deps holds what an Expander uses. All but Timeline is required.
type Deps struct {
	// Client reads claims and writes their status.
	Client   kubernetes.Interface
	Recorder record.EventRecorder
	Timeline *timeline.Recorder
	Clock    clock.PassiveClock
	Logger   *slog.Logger
}

// Expander expands volumes on one node. It is safe for concurrent use.
type Expander struct {
	deps     Deps
	nodeName string
}

// Volume is a mounted volume of a claim.
type Volume struct {
	// Spec has the claim and the PersistentVolume as they are now.
	Spec volume.Spec
	// ExpandedTo is the size in bytes up to which this node has expanded the volume, 0 if that is unknown.
	ExpandedTo *atomic.Int64
	// CallPlugin calls the plugin's Expand.
	CallPlugin func(ctx context.Context) (expanded bool, err error)
	// Exclusively runs op while no other operation on the volume's device runs.
	Exclusively func(ctx context.Context, op func(context.Context) error) error
	// OnExpanded is called after the plugin has expanded the volume, while Exclusively runs.
	OnExpanded func(size int64)
}

// New returns an Expander for the node of this name.
func New(deps Deps, nodeName string) *Expander { return &Expander{deps: deps, nodeName: nodeName} }

// InitialSize returns the value of ExpandedTo for a volume that is about to be set up. Setting up expands the volume to
// the size that its claim knows, unless several nodes share it and this node had it before: then only its driver knows
// the size on this node.
func InitialSize(request volume.Request) *atomic.Int64 {
	size, claim := new(atomic.Int64), request.Spec.PVC
	if claim == nil {
		return size
	}
	if expansion.IsShared(claim) {
		if _, err := os.Stat(request.Dir); !errors.Is(err, fs.ErrNotExist) {
			return size
		}
	}
	size.Store(claim.Status.Capacity.Storage().Value())
	return size
}

// Expand expands the volume on this node if its PersistentVolume is larger than its claim's status says, and updates the
// claim. It also expands a shared volume whose claim another node has updated. A volume that needs nothing is left alone.
func (e *Expander) Expand(ctx context.Context, pod *corev1.Pod, v Volume) error {
	pending := isPendingOnNode(v.Spec)
	if !pending && !v.lagsBehind() {
		return nil
	}
	claim := v.Spec.PVC
	if pending {
		if err := e.markInProgress(ctx, claim); err != nil {
			return err
		}
	}
	expanded, err := e.expandOnNode(ctx, v)
	if err != nil {
		if pending && ctx.Err() == nil {
			e.markFailed(ctx, v.Spec, err)
		}
		return err
	}
	updated := false
	if pending && v.isExpanded() {
		if updated, err = e.markFinished(ctx, v.Spec); err != nil {
			return err
		}
	}
	if updated || expanded && !pending {
		message := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", v.Spec.PV.Name, e.nodeName)
		e.deps.Recorder.Event(pod, corev1.EventTypeNormal, ReasonSuccessful, message)
		e.deps.Recorder.Event(claim, corev1.EventTypeNormal, ReasonSuccessful, message)
	}
	return nil
}

// expandOnNode calls the plugin, once for all Pods of the volume, and reports whether it expanded the volume.
func (e *Expander) expandOnNode(ctx context.Context, v Volume) (expanded bool, err error) {
	if v.isExpanded() {
		return false, nil
	}
	size := v.Spec.PV.Spec.Capacity.Storage()
	span := e.deps.Timeline.Begin(timeline.RefOf("PersistentVolumeClaim", v.Spec.PVC), "kubelet",
		timeline.StageGrowing, size.String())
	err = v.Exclusively(ctx, func(ctx context.Context) (err error) {
		if v.isExpanded() {
			return nil // for another Pod of the volume
		}
		if expanded, err = v.CallPlugin(ctx); expanded {
			v.ExpandedTo.Store(size.Value())
			v.OnExpanded(size.Value())
		}
		return err
	})
	span.End(err)
	return expanded, err
}

// isExpanded reports whether this node has expanded the volume to the size of its PersistentVolume.
func (v Volume) isExpanded() bool {
	return v.ExpandedTo.Load() >= v.Spec.PV.Spec.Capacity.Storage().Value()
}

// lagsBehind reports whether another node has updated the claim and this node still has to expand the volume.
func (v Volume) lagsBehind() bool {
	size, known := v.Spec.PV.Spec.Capacity.Storage(), v.Spec.PVC.Status.Capacity.Storage()
	return known.Cmp(*size) >= 0 && !v.isExpanded() && expansion.RequiredOnEveryNode(v.Spec.PVC)
}

// isPendingOnNode reports whether the volume is larger than its claim's status says, and no resizer works on it.
func isPendingOnNode(spec volume.Spec) bool {
	size := spec.PV.Spec.Capacity[corev1.ResourceStorage]
	known, ok := spec.PVC.Status.Capacity[corev1.ResourceStorage]
	if !ok || size.Cmp(known) <= 0 {
		return false
	}
	switch expansion.ResizeStatus(spec.PVC) {
	case corev1.PersistentVolumeClaimControllerResizeInProgress:
		return false // the resizer will decide whether nodes have to do anything
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return false // until the resizer changes the stage
	}
	return true
}
