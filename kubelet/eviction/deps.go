package eviction

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/status"
)

// Machine measures the node's resources. Package machine has the implementation.
type Machine interface {
	// Observe measures all resources. What cannot be measured is missing, and named by the error. It knows the layout of the
	// file systems, once the container runtime was reached.
	Observe(ctx context.Context) (Observations, Layout, error)
	// Watch calls notify when the kernel reports that memory is used up, until ctx ends.
	Watch(ctx context.Context, notify func()) error
	// Arm asks the kernel to report when about this much more of the resource is used, and returns whether it does. It may
	// also report at other times.
	Arm(signal Signal, distance int64) bool
}

// Pods are the Pods of the node. *podworker.Manager implements it.
type Pods interface {
	// ActivePods returns the Pods that use resources of the node.
	ActivePods() []*corev1.Pod
	// EvictThen ends a Pod, with a grace period in seconds, and calls done when it uses nothing of the node any more. It
	// returns false, and never calls done, if there is no such Pod.
	EvictThen(uid types.UID, failure status.Failure, grace *int64, done func()) bool
	// DiscardEnded removes the containers of Pods that have ended.
	DiscardEnded(ctx context.Context) error
}

// Deps holds what a Manager needs. All are required but RemoveImages.
type Deps struct {
	Machine Machine
	Pods    Pods
	// Usage measures what the Pods use; with disk also their disks.
	Usage func(ctx context.Context, disk bool) (Usage, error)
	// RemoveImages removes the images that no container uses, but for very new ones; nil removes none.
	RemoveImages func(ctx context.Context) error
	// Pressure is set to the current shortage, and OnPressure is called after it has changed. It must not block.
	Pressure   *Pressure
	OnPressure func()
	// ObserveStatsAge records how old the observation was by which a Pod is evicted.
	ObserveStatsAge func(signal string, age time.Duration)
	// Ready is closed when it is known which Pods the node has.
	Ready <-chan struct{}
	// Node is the object of events about the node.
	Node     *corev1.ObjectReference
	Recorder record.EventRecorder
	Clock    clock.Clock
	Logger   *slog.Logger
}

func (d *Deps) validate() error {
	for _, dep := range []struct {
		name    string
		missing bool
	}{
		{"Machine", d.Machine == nil}, {"Pods", d.Pods == nil}, {"Usage", d.Usage == nil}, {"Pressure", d.Pressure == nil},
		{"OnPressure", d.OnPressure == nil}, {"ObserveStatsAge", d.ObserveStatsAge == nil}, {"Ready", d.Ready == nil},
		{"Node", d.Node == nil}, {"Recorder", d.Recorder == nil}, {"Clock", d.Clock == nil}, {"Logger", d.Logger == nil},
	} {
		if dep.missing {
			return errors.New("eviction: Deps." + dep.name + " is required")
		}
	}
	return nil
}
