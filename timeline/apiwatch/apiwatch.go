// Package apiwatch records what the API server itself shows of a Pod's and a claim's way: accepted, scheduled,
// bound, seen as ready. The components that do the work record the rest; no other component sees these moments to
// the millisecond.
package apiwatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
)

const (
	owner     = "api"
	scheduler = "scheduler"
)

// maxAcceptAge is how old an object may be when it is first seen for its acceptance to be recorded: creation times are in
// whole seconds, and older objects were accepted before the watch began.
const maxAcceptAge = 2 * time.Second

// errDeleted ends the scheduling of a Pod that was deleted before it had a node.
var errDeleted = errors.New("deleted before a node was chosen")

// Run watches Pods and claims until ctx ends.
func Run(ctx context.Context, client kubernetes.Interface, recorder *timeline.Recorder, clock clock.PassiveClock) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	claims := factory.Core().V1().PersistentVolumeClaims().Informer()
	if err := pods.SetTransform(strip); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	w := watcher{recorder: recorder, clock: clock, unscheduled: make(map[types.UID]*timeline.Span)}
	_, podErr := pods.AddEventHandler(handler(w.pod, w.podDeleted))
	_, claimErr := claims.AddEventHandler(handler(w.claim, func(*corev1.PersistentVolumeClaim) {}))
	if err := errors.Join(podErr, claimErr); err != nil {
		return fmt.Errorf("watch pods and claims: %w", err)
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// strip keeps only the fields of a Pod that the record needs, so that the watch is cheap on a busy cluster.
func strip(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{ObjectMeta: pod.ObjectMeta}
	kept.ManagedFields, kept.Annotations, kept.Labels = nil, nil, nil
	kept.Spec.NodeName = pod.Spec.NodeName
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			kept.Status.Conditions = []corev1.PodCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	return kept, nil
}

// watcher handles the changes. One goroutine, which owns unscheduled, delivers those of Pods.
type watcher struct {
	recorder    *timeline.Recorder
	clock       clock.PassiveClock
	unscheduled map[types.UID]*timeline.Span
}

func (w *watcher) pod(pod *corev1.Pod, initial bool) {
	ref := timeline.PodRef(pod)
	w.accept(ref, pod.CreationTimestamp.Time, initial)
	if initial {
		return // its past is not known to the millisecond
	}
	span := w.unscheduled[pod.UID]
	switch {
	case pod.Spec.NodeName == "" && span == nil:
		w.unscheduled[pod.UID] = w.recorder.Begin(ref, scheduler, timeline.StageScheduled, "")
	case pod.Spec.NodeName != "" && span != nil:
		span.End(nil)
		delete(w.unscheduled, pod.UID)
	}
	if len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Status == corev1.ConditionTrue {
		w.recorder.Mark(ref, owner, timeline.StageObserved, "", nil)
	}
}

func (w *watcher) podDeleted(pod *corev1.Pod) {
	if span := w.unscheduled[pod.UID]; span != nil {
		span.End(errDeleted)
		delete(w.unscheduled, pod.UID)
	}
}

func (w *watcher) claim(claim *corev1.PersistentVolumeClaim, initial bool) {
	ref := timeline.RefOf("PersistentVolumeClaim", claim)
	w.accept(ref, claim.CreationTimestamp.Time, initial)
	if claim.Status.Phase == corev1.ClaimBound && !initial {
		w.recorder.Mark(ref, owner, timeline.StageBound, "", nil)
	}
}

func (w *watcher) accept(ref timeline.Ref, created time.Time, initial bool) {
	if !initial && w.clock.Since(created) < maxAcceptAge {
		w.recorder.Mark(ref, owner, timeline.StageAccepted, "", nil)
	}
}

func handler[T any](seen func(obj T, initial bool), gone func(obj T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if typed, ok := obj.(T); ok {
				seen(typed, initial)
			}
		},
		UpdateFunc: func(_, obj any) {
			if typed, ok := obj.(T); ok {
				seen(typed, false)
			}
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if typed, ok := obj.(T); ok {
				gone(typed)
			}
		},
	}
}
