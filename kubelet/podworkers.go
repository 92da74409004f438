package kubelet

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	podconfig "github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/status"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// empty lets callers write map[types.UID]struct{}.
type empty = struct{}

// PodStatusFunc returns the status of a Pod that is killed, from its state in the runtime.
type PodStatusFunc func(pod *corev1.Pod, podStatus *container.PodStatus) corev1.PodStatus

// OnCompleteFunc is called when a request is done, or with its error.
type OnCompleteFunc func(err error)

// KillPodOptions say how a Pod is killed.
type KillPodOptions struct {
	// PodStatusFunc returns the reason and the message that the Pod fails with. It may be nil.
	PodStatusFunc PodStatusFunc
	// PodTerminationGracePeriodSecondsOverride is the time that the Pod has to end, in place of its own; nil leaves it.
	PodTerminationGracePeriodSecondsOverride *int64
}

// UpdatePodOptions is a request to a Pod's worker.
type UpdatePodOptions struct {
	// Pod is the newest version known, and MirrorPod its mirror if it is static and has one.
	Pod, MirrorPod *corev1.Pod
	UpdateType     kubelettypes.SyncPodType
	// OnCompleteFunc may be nil. For SyncPodKill it is called when the Pod's containers have ended; for the other types
	// as soon as the worker has the request, since later ones may take its place.
	OnCompleteFunc OnCompleteFunc
	// KillPodOptions are for SyncPodKill.
	KillPodOptions *KillPodOptions
}

// PodWorkers gives each Pod a worker of its own, which handles its requests one after another.
type PodWorkers interface {
	// UpdatePod hands a request to the Pod's worker, and starts one if there is none. It does not block.
	UpdatePod(options *UpdatePodOptions)
	// ForgetNonExistingPodWorkers removes all Pods but the desired ones.
	ForgetNonExistingPodWorkers(desiredPods map[types.UID]empty)
	// ForgetWorker removes a Pod.
	ForgetWorker(uid types.UID)
}

// PodWorkers returns the workers of this node's Pods.
func (k *Kubelet) PodWorkers() PodWorkers { return &podWorkers{k} }

// podWorkers are the workers of a Kubelet.
type podWorkers struct{ k *Kubelet }

// UpdatePod implements PodWorkers.
func (w *podWorkers) UpdatePod(options *UpdatePodOptions) {
	pod, done := options.Pod, options.OnCompleteFunc
	if done == nil {
		done = func(error) {}
	}
	if options.MirrorPod != nil {
		w.k.agent.HandlePod(podconfig.Change{Op: podconfig.Update, Pod: options.MirrorPod})
	}
	switch options.UpdateType {
	case kubelettypes.SyncPodKill:
		w.kill(pod, options.KillPodOptions, done)
		return
	case kubelettypes.SyncPodCreate:
		w.k.agent.HandlePod(podconfig.Change{Op: podconfig.Add, Pod: pod})
	case kubelettypes.SyncPodUpdate:
		w.k.HandlePodUpdates([]*corev1.Pod{pod})
	case kubelettypes.SyncPodSync:
		w.k.parts.Signals.Wake(pod.UID)
	}
	done(nil)
}

// kill stops a Pod as failed, and calls done when its containers have ended.
func (w *podWorkers) kill(pod *corev1.Pod, options *KillPodOptions, done OnCompleteFunc) {
	failure := status.Failure{Reason: "Killed", Message: "The pod was killed by the node"}
	var grace *int64
	if options != nil {
		grace = options.PodTerminationGracePeriodSecondsOverride
		if options.PodStatusFunc != nil {
			s := options.PodStatusFunc(pod, &container.PodStatus{UID: pod.UID, Name: pod.Name, Namespace: pod.Namespace})
			failure.Reason, failure.Message = s.Reason, s.Message
		}
	}
	notify := sync.OnceFunc(func() { done(nil) })
	cancel := w.k.parts.PodEvents.SubscribeUntil(func(event status.Event) bool {
		if event.UID != pod.UID || !event.Removed && !podutil.IsTerminal(&event.Status) {
			return false
		}
		notify()
		return true
	})
	if !w.k.parts.Workers.Evict(pod.UID, failure, grace) {
		cancel()
		notify() // there is nothing to kill
	}
}

// ForgetNonExistingPodWorkers implements PodWorkers.
func (w *podWorkers) ForgetNonExistingPodWorkers(desiredPods map[types.UID]empty) {
	desired := maps.Clone(desiredPods)
	for _, pod := range w.k.parts.Workers.Pods() {
		if _, wanted := desired[pod.UID]; !wanted {
			w.k.agent.HandlePod(podconfig.Change{Op: podconfig.Remove, Pod: pod})
		}
	}
}

// ForgetWorker implements PodWorkers.
func (w *podWorkers) ForgetWorker(uid types.UID) {
	for _, pod := range w.k.parts.Workers.Pods() {
		if pod.UID == uid {
			w.k.agent.HandlePod(podconfig.Change{Op: podconfig.Remove, Pod: pod})
		}
	}
}
