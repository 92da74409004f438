package kubelet

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podconfig "github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/podworker"
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
	// PodStatusFunc returns the status that the Pod ends with, from its state in the runtime: its phase if that is terminal,
	// else Failed, its reason, message and conditions. It may be nil, and must not block.
	PodStatusFunc PodStatusFunc
	// PodTerminationGracePeriodSecondsOverride is the time that the Pod has to end, in place of its own; nil leaves it.
	PodTerminationGracePeriodSecondsOverride *int64
}

// UpdatePodOptions is a request to a Pod's worker.
type UpdatePodOptions struct {
	// Pod is the newest version known, and MirrorPod its mirror if it is static and has one.
	Pod, MirrorPod *corev1.Pod
	UpdateType     kubelettypes.SyncPodType
	// OnCompleteFunc may be nil, and must not block. For SyncPodKill it is called when the Pod's containers have ended, or
	// with the error of an attempt to stop them; for the other types when the operations of the Pod's next sync have ended,
	// with the errors of those that failed. Only the call for SyncPodKill is certain.
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
	if !w.k.parts.Workers.OnSynced(pod.UID, done) {
		done(fmt.Errorf("%s Pod %s/%s: it has no worker", options.UpdateType, pod.Namespace, pod.Name))
	}
}

// kill ends a Pod, and calls done when its containers have ended.
func (w *podWorkers) kill(pod *corev1.Pod, options *KillPodOptions, done OnCompleteFunc) {
	request := podworker.KillRequest{Done: done}
	if options != nil {
		request.Grace, request.Status = options.PodTerminationGracePeriodSecondsOverride, options.PodStatusFunc
	}
	if !w.k.parts.Workers.Kill(pod.UID, request) {
		done(nil) // there is nothing to kill
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
