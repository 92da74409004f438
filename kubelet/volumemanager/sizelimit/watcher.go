// Package sizelimit measures the emptyDirs on disk that have a sizeLimit, and reports those that exceed it.
package sizelimit

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/volume"
)

const (
	// measureInterval is how often the volumes are measured: the kernel has no event for the size of a directory.
	measureInterval = 10 * time.Second
	// measureCostFactor bounds the cost of measuring: the interval is at least so many times as long as it took.
	measureCostFactor = 20
)

// Volume is an emptyDir on disk with a size limit.
type Volume struct {
	PodUID types.UID
	Name   string
	Dir    string
	Limit  int64
	// LimitText is the limit as the Pod's spec has it.
	LimitText string
}

// LimitOf returns the volume with its limit, and false if it has to be measured for none. The kernel itself enforces the
// limits of volumes in memory.
func LimitOf(uid types.UID, spec volume.Spec, dir string) (Volume, bool) {
	if spec.PV != nil || spec.Volume == nil || spec.Volume.EmptyDir == nil {
		return Volume{}, false
	}
	source := spec.Volume.EmptyDir
	if source.Medium != corev1.StorageMediumDefault || source.SizeLimit == nil || source.SizeLimit.Sign() <= 0 {
		return Volume{}, false
	}
	return Volume{
		PodUID: uid, Name: spec.Name, Dir: dir, Limit: source.SizeLimit.Value(), LimitText: source.SizeLimit.String(),
	}, true
}

// Deps holds what a Watcher uses. All of it is required.
type Deps struct {
	// List returns the mounted volumes that have a limit.
	List func() []Volume
	// OnExceeded is called after each measurement of a volume that is larger than its limit. It must not block.
	OnExceeded func(uid types.UID, message string)
	Clock      clock.Clock
	Logger     *slog.Logger
}

// Watcher measures volumes. It is safe for concurrent use.
type Watcher struct {
	deps  Deps
	added wakeup.Signal
}

// New returns a Watcher.
func New(deps Deps) *Watcher { return &Watcher{deps: deps, added: wakeup.NewSignal()} }

// VolumeAdded says that List may return a new volume.
func (w *Watcher) VolumeAdded() { w.added.Notify() }

// Start measures the volumes until ctx ends. It has no timer while there are none.
func (w *Watcher) Start(ctx context.Context) {
	interval := measureInterval
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.added.C():
		}
		if !wakeup.Sleep(ctx, w.deps.Clock, interval) {
			return
		}
		began := w.deps.Clock.Now()
		volumes := w.deps.List()
		for _, v := range volumes {
			w.check(ctx, v)
		}
		interval = max(measureInterval, measureCostFactor*w.deps.Clock.Since(began))
		if len(volumes) > 0 {
			w.added.Notify()
		}
	}
}

func (w *Watcher) check(ctx context.Context, v Volume) {
	used, err := diskUsage(ctx, v.Dir, v.Limit)
	if err != nil {
		w.deps.Logger.Debug("failed to measure emptyDir", "uid", v.PodUID, "volume", v.Name, "error", err)
		return
	}
	if used > v.Limit {
		w.deps.OnExceeded(v.PodUID, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.LimitText))
	}
}
