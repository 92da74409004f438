// Package apiwatch records what the API server itself shows of a Pod's and a claim's way: accepted, scheduled,
// bound. The parts that do the work record the rest; nobody else sees these moments to the millisecond.
package apiwatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
)

const owner = "api"

// fresh is how old an object may be when it is first seen for its acceptance to be recorded: creation times have
// whole seconds, and for objects older than that the moment is long gone.
const fresh = 2 * time.Second

// Run watches Pods and claims until ctx ends.
func Run(ctx context.Context, client kubernetes.Interface, rec *timeline.Recorder, clk clock.PassiveClock) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	claims := factory.Core().V1().PersistentVolumeClaims().Informer()
	// The record needs few fields; keeping no more makes the watch cheap on a busy cluster.
	strip := func(obj any) (any, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			kept := &corev1.Pod{ObjectMeta: pod.ObjectMeta}
			kept.ManagedFields, kept.Annotations, kept.Labels = nil, nil, nil
			kept.Spec.NodeName = pod.Spec.NodeName
			return kept, nil
		}
		return obj, nil
	}
	if err := pods.SetTransform(strip); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	_, podErr := pods.AddEventHandler(handler(func(pod *corev1.Pod, initial bool) {
		ref := timeline.PodRef(pod)
		accept(rec, clk, ref, pod.CreationTimestamp.Time, initial)
		if pod.Spec.NodeName != "" && !initial {
			rec.Mark(ref, owner, timeline.StageScheduled, "", nil)
		}
	}))
	_, claimErr := claims.AddEventHandler(handler(func(claim *corev1.PersistentVolumeClaim, initial bool) {
		ref := timeline.RefOf("PersistentVolumeClaim", claim)
		accept(rec, clk, ref, claim.CreationTimestamp.Time, initial)
		if claim.Status.Phase == corev1.ClaimBound && !initial {
			rec.Mark(ref, owner, timeline.StageBound, "", nil)
		}
	}))
	if err := errors.Join(podErr, claimErr); err != nil {
		return fmt.Errorf("watch pods and claims: %w", err)
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

func accept(rec *timeline.Recorder, clk clock.PassiveClock, ref timeline.Ref, created time.Time, initial bool) {
	if !initial && clk.Since(created) < fresh {
		rec.Mark(ref, owner, timeline.StageAccepted, "", nil)
	}
}

func handler[T any](seen func(obj T, initial bool)) cache.ResourceEventHandler {
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
	}
}
