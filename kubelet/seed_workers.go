package kubelet

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/status"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// empty lets callers write map[types.UID]struct{}.
type empty = struct{}

// PodStatusFunc makes the status of a Pod that is killed, from what the runtime holds of it.
type PodStatusFunc func(pod *corev1.Pod, podStatus *container.PodStatus) corev1.PodStatus

// OnCompleteFunc is called when what was asked for is done, or with the error that kept it from being done.
type OnCompleteFunc func(err error)

// KillPodOptions say how a Pod is killed.
type KillPodOptions struct {
	// PodStatusFunc gives the reason and the message that the Pod fails with. It may be nil.
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

// PodWorkers gives each Pod a worker of its own, which sees to its requests one after another.
type PodWorkers interface {
	// UpdatePod hands a request to the Pod's worker, and makes one if there is none. It does not block.
	UpdatePod(options *UpdatePodOptions)
	// ForgetNonExistingPodWorkers ends all Pods but the desired ones.
	ForgetNonExistingPodWorkers(desiredPods map[types.UID]empty)
	// ForgetWorker ends a Pod.
	ForgetWorker(uid types.UID)
}

// PodWorkers are the workers of this node's Pods.
func (k *Kubelet) PodWorkers() PodWorkers { return &podWorkers{k} }

// podWorkers is the node agent under the names of the seed.
type podWorkers struct{ k *Kubelet }

// UpdatePod implements PodWorkers.
func (w *podWorkers) UpdatePod(options *UpdatePodOptions) {
	pod, done := options.Pod, options.OnCompleteFunc
	if done == nil {
		done = func(error) {}
	}
	if options.MirrorPod != nil {
		w.k.HandlePod(config.Change{Op: config.Update, Pod: options.MirrorPod})
	}
	switch options.UpdateType {
	case kubelettypes.SyncPodKill:
		w.kill(pod, options.KillPodOptions, done)
		return
	case kubelettypes.SyncPodCreate:
		w.k.HandlePod(config.Change{Op: config.Add, Pod: pod})
	case kubelettypes.SyncPodUpdate:
		w.k.HandlePodUpdates([]*corev1.Pod{pod})
	case kubelettypes.SyncPodSync:
		w.k.workers.Wake(pod.UID)
	}
	done(nil)
}

// kill ends a Pod as failed and reports when its containers have ended.
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
	ended := make(chan struct{}, 1)
	tell := func() {
		select {
		case ended <- struct{}{}:
			done(nil)
		default: // told before
		}
	}
	// The reader that is told last takes itself off the list: a Pod that is gone has no further news.
	var cancel func()
	cancel = w.k.readers.addOnce(func(r Report) bool {
		if r.UID != pod.UID || !r.Gone && !podutil.IsTerminal(&r.Status) {
			return false
		}
		tell()
		return true
	})
	if !w.k.workers.Evict(pod.UID, failure, grace) {
		cancel()
		tell() // there is nothing to be killed
	}
}

// ForgetNonExistingPodWorkers implements PodWorkers.
func (w *podWorkers) ForgetNonExistingPodWorkers(desiredPods map[types.UID]empty) {
	desired := maps.Clone(desiredPods)
	for _, pod := range w.k.workers.Pods() {
		if _, wanted := desired[pod.UID]; !wanted {
			w.k.HandlePod(config.Change{Op: config.Remove, Pod: pod})
		}
	}
}

// ForgetWorker implements PodWorkers.
func (w *podWorkers) ForgetWorker(uid types.UID) {
	for _, pod := range w.k.workers.Pods() {
		if pod.UID == uid {
			w.k.HandlePod(config.Change{Op: config.Remove, Pod: pod})
		}
	}
}
