package localstorage

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// minInterval and maxInterval bound the time between two readings of the free space.
	minInterval = time.Second
	maxInterval = 10 * time.Second
	// fastest is how much is written to the disk in a second, as far as the readings of the free space are planned.
	fastest = 256 << 20
	// maxAge is the age at which a Pod is measured again although the disk has hardly filled: others may have freed what it took.
	maxAge = 30 * time.Second
	// runtimeAge is how old the container runtime's measurement of a layer may be: containerd measures every 10 s.
	runtimeAge = 11 * time.Second
	// costFactor bounds the cost of measuring: the interval is at least so many times as long as it took.
	costFactor = 20
)

// Deps holds what a Watcher uses. All are required.
type Deps struct {
	// Pods returns the Pods of the node that have not ended.
	Pods func() []*corev1.Pod
	// Measure returns what a Pod occupies; without containers only its volumes. After an error it is what could be measured.
	Measure func(ctx context.Context, pod *corev1.Pod, containers bool) (Usage, error)
	// Free returns the free space of the disks that Pods write to, and whether layers are on that of the kubelet's directory.
	Free func(ctx context.Context) (bytes int64, layersHere bool, err error)
	// OnExceeded is called once for a Pod that exceeds a limit. It must not block.
	OnExceeded func(pod *corev1.Pod, excess Excess)
	Clock      clock.Clock
	Logger     *slog.Logger
}

// Watcher measures the Pods that have limits.
type Watcher struct {
	deps    Deps
	changed wakeup.Signal

	// measured is used by the goroutine of Start alone.
	measured map[types.UID]measurement
}

// measurement is what is known of a Pod.
type measurement struct {
	at   time.Time
	left int64 // to the nearest limit
	free int64 // on the disks
	// again is when the runtime has measured the layers, after the disk has filled; zero if that does not matter.
	again time.Time
	// reported says that a limit is exceeded, and that OnExceeded was called.
	reported bool
}

// New returns a Watcher.
func New(deps Deps) (*Watcher, error) {
	if deps.Pods == nil || deps.Measure == nil || deps.Free == nil || deps.OnExceeded == nil || deps.Clock == nil || deps.Logger == nil {
		return nil, errors.New("localstorage: Deps.Pods, Measure, Free, OnExceeded, Clock and Logger are required")
	}
	return &Watcher{deps: deps, changed: wakeup.NewSignal(), measured: map[types.UID]measurement{}}, nil
}

// PodChanged says that Pods may return a new Pod, or one with other limits.
func (w *Watcher) PodChanged(pod *corev1.Pod) {
	if limited, _ := Limited(pod); limited {
		w.changed.Notify()
	}
}

// Start measures until ctx ends. It has no timer while there are no Pods with limits.
func (w *Watcher) Start(ctx context.Context) error {
	wait := time.Duration(0)
	for {
		if wait == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-w.changed.C():
			}
			wait = minInterval
		}
		if !wakeup.Sleep(ctx, w.deps.Clock, wait) {
			return nil
		}
		wait = w.round(ctx)
	}
}

// round measures the Pods that may have come near to a limit, and returns the time to the next round, 0 if there are no Pods with
// limits.
func (w *Watcher) round(ctx context.Context) time.Duration {
	began := w.deps.Clock.Now()
	free, layersHere, err := w.deps.Free(ctx)
	if err != nil {
		w.deps.Logger.Warn("failed to measure the free space for limits of ephemeral storage", "error", err)
		return maxInterval
	}
	next, found := map[types.UID]measurement{}, false
	wait := maxInterval
	for _, pod := range w.deps.Pods() {
		limited, containers := Limited(pod)
		if !limited {
			continue
		}
		found = true
		last, known := w.measured[pod.UID]
		if last.reported {
			next[pod.UID] = last
			continue
		}
		filled := known && last.free-free >= last.left/2
		if !known || filled || began.Sub(last.at) >= maxAge || !last.again.IsZero() && !began.Before(last.again) {
			if last, err = w.measure(ctx, pod, containers, layersHere); err != nil {
				w.deps.Logger.Debug("failed to measure ephemeral storage of Pod", "pod", pod.Namespace+"/"+pod.Name, "error", err)
				continue // it is measured in the next round
			}
			last.free = free
			if filled && containers {
				last.again = began.Add(runtimeAge)
			}
		}
		next[pod.UID] = last
		seconds := float64(last.left) / fastest
		wait = min(wait, max(minInterval, time.Duration(min(seconds, maxInterval.Seconds())*float64(time.Second))))
	}
	if w.measured = next; !found {
		return 0
	}
	return max(wait, costFactor*w.deps.Clock.Since(began))
}

// measure measures one Pod, and reports a limit that it exceeds.
func (w *Watcher) measure(ctx context.Context, pod *corev1.Pod, containers, layersHere bool) (measurement, error) {
	used, err := w.deps.Measure(ctx, pod, containers)
	excess, left := check(pod, &used, layersHere)
	if excess != nil { // what could not be measured only adds to it
		w.deps.OnExceeded(pod, *excess)
		err = nil
	}
	return measurement{at: w.deps.Clock.Now(), left: left, reported: excess != nil}, err
}
