package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/internal/quantity"
	"github.com/berth-dev/berth/provision"
)

const (
	snapshotGroup = "snapshot.storage.k8s.io"
	snapshotKind  = "VolumeSnapshot"
	claimKind     = "PersistentVolumeClaim"
	// annModeChange allows a volume of another mode than the snapshot's source.
	annModeChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
)

var (
	snapshots = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshots"}
	contents  = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotcontents"}
)

// source returns the source of the volume's content, nil if it is to be empty, and the claim that is cloned, if one is.
func (p *Provisioner) source(
	ctx context.Context, capabilities *capabilities, options provision.VolumeOptions,
) (content *csiapi.VolumeContentSource, cloned *corev1.PersistentVolumeClaim, err error) {
	claim := options.PVC
	var group, kind, name string
	switch ref, old := claim.Spec.DataSourceRef, claim.Spec.DataSource; {
	case ref != nil:
		if ref.Namespace != nil && *ref.Namespace != "" && *ref.Namespace != claim.Namespace {
			return nil, nil, fmt.Errorf("spec.dataSourceRef.namespace: %q: sources of other namespaces are not supported",
				*ref.Namespace)
		}
		kind, name = ref.Kind, ref.Name
		if ref.APIGroup != nil {
			group = *ref.APIGroup
		}
	case old != nil:
		kind, name = old.Kind, old.Name
		if old.APIGroup != nil {
			group = *old.APIGroup
		}
	default:
		return nil, nil, nil
	}
	switch {
	case group == snapshotGroup && kind == snapshotKind:
		if !capabilities.rpc[csiapi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT] {
			return nil, nil, fmt.Errorf("spec.dataSource: driver %q does not support snapshots", p.config.Name)
		}
		content, err = p.snapshotSource(ctx, claim, name)
		return content, nil, err
	case group == "" && kind == claimKind:
		if !capabilities.rpc[csiapi.ControllerServiceCapability_RPC_CLONE_VOLUME] {
			return nil, nil, fmt.Errorf("spec.dataSource: driver %q does not support cloning volumes", p.config.Name)
		}
		return p.cloneSource(ctx, claim, name)
	}
	return nil, nil, &provision.IgnoredError{Reason: fmt.Sprintf("a %s of %q is for a volume populator", kind, group)}
}

func (p *Provisioner) cloneSource(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, name string,
) (*csiapi.VolumeContentSource, *corev1.PersistentVolumeClaim, error) {
	source, err := p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !isClaimBound(source) {
		p.waits.wait(claim.UID, sourceKey{claimKind, claim.Namespace, name})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("spec.dataSource: %w", err)
	}
	switch {
	case source.DeletionTimestamp != nil && !slices.Contains(source.Finalizers, finalizerClone):
		return nil, nil, fmt.Errorf("spec.dataSource: claim %q is being deleted", name)
	case source.Status.Phase != corev1.ClaimBound || source.Spec.VolumeName == "":
		return nil, nil, fmt.Errorf("spec.dataSource: claim %q is not bound", name)
	case modeOf(source.Spec.VolumeMode) != modeOf(claim.Spec.VolumeMode):
		return nil, nil, fmt.Errorf("spec.dataSource: claim %q has volumeMode %s, not %s",
			name, modeOf(source.Spec.VolumeMode), modeOf(claim.Spec.VolumeMode))
	}
	volume, err := p.client.CoreV1().PersistentVolumes().Get(ctx, source.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("spec.dataSource: claim %q: %w", name, err)
	}
	// Not the size of the volume: drivers round up what is requested, and will do so again.
	have, want := source.Spec.Resources.Requests[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch ref := volume.Spec.ClaimRef; {
	case volume.Spec.CSI == nil || volume.Spec.CSI.Driver != p.config.Name:
		return nil, nil, fmt.Errorf("spec.dataSource: claim %q is not of driver %q", name, p.config.Name)
	case ref == nil || ref.UID != source.UID:
		return nil, nil, fmt.Errorf("spec.dataSource: volume %q is not bound to claim %q", volume.Name, name)
	case want.Cmp(have) < 0:
		return nil, nil, fmt.Errorf("spec.resources.requests.storage: %s is less than the %s of the source", &want, &have)
	}
	return &csiapi.VolumeContentSource{Type: &csiapi.VolumeContentSource_Volume{
		Volume: &csiapi.VolumeContentSource_VolumeSource{VolumeId: volume.Spec.CSI.VolumeHandle},
	}}, source, nil
}

func modeOf(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}

func (p *Provisioner) snapshotSource(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, name string,
) (*csiapi.VolumeContentSource, error) {
	if p.dynamic == nil {
		return nil, errors.New("spec.dataSource: snapshots are not enabled")
	}
	snapshot, err := p.dynamic.Resource(snapshots).Namespace(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (isLeaving(snapshot, claim) || !isReadyToUse(snapshot)) {
		p.waits.wait(claim.UID, sourceKey{snapshotKind, claim.Namespace, name})
	}
	if err != nil {
		return nil, fmt.Errorf("spec.dataSource: %w", err)
	}
	contentName, _, _ := unstructured.NestedString(snapshot.Object, "status", "boundVolumeSnapshotContentName")
	switch {
	case isLeaving(snapshot, claim):
		return nil, fmt.Errorf("spec.dataSource: snapshot %q is being deleted", name)
	case !isReadyToUse(snapshot):
		return nil, fmt.Errorf("spec.dataSource: snapshot %q is not ready", name)
	}
	content, err := p.dynamic.Resource(contents).Get(ctx, contentName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("spec.dataSource: snapshot %q: %w", name, err)
	}
	handle, err := p.snapshotHandle(claim, snapshot, content)
	if err != nil {
		return nil, fmt.Errorf("spec.dataSource: snapshot %q: %w", name, err)
	}
	return &csiapi.VolumeContentSource{Type: &csiapi.VolumeContentSource_Snapshot{
		Snapshot: &csiapi.VolumeContentSource_SnapshotSource{SnapshotId: handle},
	}}, nil
}

// isLeaving returns whether a VolumeSnapshot is being deleted and does not wait for the claim. It waits for the claims that were
// created before, until they are Bound or gone: an earlier process may have begun to create a volume for one of them.
func isLeaving(snapshot *unstructured.Unstructured, claim *corev1.PersistentVolumeClaim) bool {
	deleted := snapshot.GetDeletionTimestamp()
	return deleted != nil && deleted.Before(&claim.CreationTimestamp)
}

// snapshotHandle returns the driver's id of a snapshot, if the claim may be restored from it.
func (p *Provisioner) snapshotHandle(
	claim *corev1.PersistentVolumeClaim, snapshot, content *unstructured.Unstructured,
) (string, error) {
	text := func(object *unstructured.Unstructured, path ...string) string {
		value, _, _ := unstructured.NestedString(object.Object, path...) // absent or of another type: the empty string matches nothing
		return value
	}
	if driver := text(content, "spec", "driver"); driver != p.config.Name {
		return "", fmt.Errorf("it is of driver %q, not %q", driver, p.config.Name)
	}
	if text(content, "spec", "volumeSnapshotRef", "uid") != string(snapshot.GetUID()) ||
		text(content, "spec", "volumeSnapshotRef", "name") != snapshot.GetName() ||
		text(content, "spec", "volumeSnapshotRef", "namespace") != snapshot.GetNamespace() {
		return "", fmt.Errorf("content %q is of another snapshot", content.GetName())
	}
	mode := text(content, "spec", "sourceVolumeMode")
	mayChange, _ := strconv.ParseBool(content.GetAnnotations()[annModeChange]) // anything else is no permission
	if mode != "" && mode != string(modeOf(claim.Spec.VolumeMode)) && !mayChange {
		return "", fmt.Errorf("its source has volumeMode %s, not %s (the annotation %q of content %q is not true)",
			mode, modeOf(claim.Spec.VolumeMode), annModeChange, content.GetName())
	}
	if size := text(snapshot, "status", "restoreSize"); size != "" {
		least, err := quantity.Parse(size)
		if err != nil {
			return "", fmt.Errorf("status.restoreSize %q: %w", size, err)
		}
		want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if want.Cmp(least) < 0 {
			return "", fmt.Errorf("spec.resources.requests.storage: %s is less than its size, %s", &want, &least)
		}
	}
	handle := text(content, "status", "snapshotHandle")
	if handle == "" {
		return "", fmt.Errorf("content %q has no handle yet", content.GetName())
	}
	return handle, nil
}
