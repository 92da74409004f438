package kubelet

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/config"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// updateAdapter converts PodUpdates to changes of single Pods. It belongs to one goroutine.
type updateAdapter struct {
	k *Kubelet
	// known has the Pods of each source.
	known map[string]map[types.UID]*corev1.Pod
}

func newUpdateAdapter(k *Kubelet) *updateAdapter {
	return &updateAdapter{k: k, known: map[string]map[types.UID]*corev1.Pod{}}
}

func (a *updateAdapter) apply(update kubelettypes.PodUpdate) {
	pods := make([]*corev1.Pod, 0, len(update.Pods))
	for _, pod := range update.Pods {
		pods = append(pods, a.withSource(pod, update.Source))
	}
	known := a.known[update.Source]
	if known == nil {
		known = map[types.UID]*corev1.Pod{}
		a.known[update.Source] = known
	}
	switch update.Op {
	case kubelettypes.SET:
		a.applySet(known, pods)
	case kubelettypes.REMOVE:
		a.k.HandlePodRemoves(pods)
		for _, pod := range pods {
			delete(known, pod.UID)
		}
	case kubelettypes.RECONCILE:
		a.k.HandlePodReconcile(pods)
	case kubelettypes.ADD:
		a.k.HandlePodAdditions(pods)
	default:
		a.k.HandlePodUpdates(pods)
	}
	if update.Op != kubelettypes.REMOVE {
		for _, pod := range pods {
			known[pod.UID] = pod
		}
	}
	a.markReady(update.Source)
}

// applySet makes the source's Pods those given.
func (a *updateAdapter) applySet(known map[types.UID]*corev1.Pod, pods []*corev1.Pod) {
	var added, changed []*corev1.Pod
	next := map[types.UID]bool{}
	for _, pod := range pods {
		next[pod.UID] = true
		if known[pod.UID] == nil {
			added = append(added, pod)
		} else {
			changed = append(changed, pod)
		}
	}
	for uid, pod := range maps.Clone(known) {
		if next[uid] {
			continue
		}
		// As at the API server: first the Pod is deleted with its grace period, then it is removed.
		deleted := *pod
		now := metav1.NewTime(a.k.deps.Clock.Now())
		deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = &now, pod.Spec.TerminationGracePeriodSeconds
		a.k.HandlePodUpdates([]*corev1.Pod{&deleted})
		a.k.HandlePodRemoves([]*corev1.Pod{&deleted})
		delete(known, uid)
	}
	a.k.HandlePodAdditions(added)
	a.k.HandlePodUpdates(changed)
}

// markReady has orphans stopped as soon as all sources are ready. Without a PodConfig it is not known how many sources there
// are, and nothing is stopped.
func (a *updateAdapter) markReady(source string) {
	if in := a.k.injected; in.PodConfig != nil && in.PodConfig.MarkSeen(source) {
		a.k.agent.SourcesReady()
	}
}

// withSource returns a copy of the Pod that is annotated with its source.
func (a *updateAdapter) withSource(pod *corev1.Pod, source string) *corev1.Pod {
	if source == "" {
		source = kubelettypes.FileSource
	}
	out := *pod
	out.Annotations = maps.Clone(pod.Annotations)
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Annotations[config.SourceAnnotation] = source
	if out.Annotations[config.SeenAnnotation] == "" {
		out.Annotations[config.SeenAnnotation] = a.k.deps.Clock.Now().Format(time.RFC3339Nano)
	}
	return &out
}
