package lifecycle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PodAdmitAttributes are the input of an admission handler.
type PodAdmitAttributes struct {
	// Pod is the new Pod; OtherPods run already.
	Pod       *corev1.Pod
	OtherPods []*corev1.Pod
}

// PodAdmitResult is an admission handler's result. Reason and Message become those of the Pod's status if it is not
// admitted.
type PodAdmitResult struct {
	Admit           bool
	Reason, Message string
}

// PodAdmitHandler decides whether the node admits a Pod. It must not block.
type PodAdmitHandler interface {
	Admit(attrs *PodAdmitAttributes) PodAdmitResult
}

// PodSyncLoopHandler requests that Pods are synced again.
type PodSyncLoopHandler interface {
	// ShouldSync reports whether the Pod is to be synced now. It must not block.
	ShouldSync(pod *corev1.Pod) bool
}

// PodSyncLoopHandlers are several handlers.
type PodSyncLoopHandlers []PodSyncLoopHandler

// AddPodSyncLoopHandler adds a handler.
func (h *PodSyncLoopHandlers) AddPodSyncLoopHandler(handler PodSyncLoopHandler) {
	*h = append(*h, handler)
}

// ShouldSync reports whether one of the handlers wants the Pod to be synced.
func (h PodSyncLoopHandlers) ShouldSync(pod *corev1.Pod) bool {
	return slices.ContainsFunc(h, func(one PodSyncLoopHandler) bool { return one.ShouldSync(pod) })
}

// ShouldEvictResponse is a PodSyncHandler's result. Reason and Message become those of the Pod's status if it is
// evicted.
type ShouldEvictResponse struct {
	Evict           bool
	Reason, Message string
}

// PodSyncHandler decides whether a Pod is evicted.
type PodSyncHandler interface {
	// ShouldEvict is called after each change of the Pod. It must not block.
	ShouldEvict(pod *corev1.Pod) ShouldEvictResponse
}

// PodSyncHandlers are several handlers.
type PodSyncHandlers []PodSyncHandler

// AddPodSyncHandler adds a handler.
func (h *PodSyncHandlers) AddPodSyncHandler(handler PodSyncHandler) { *h = append(*h, handler) }

// ShouldEvict returns the first response that evicts the Pod, or one that does not.
func (h PodSyncHandlers) ShouldEvict(pod *corev1.Pod) ShouldEvictResponse {
	for _, one := range h {
		if response := one.ShouldEvict(pod); response.Evict {
			return response
		}
	}
	return ShouldEvictResponse{}
}
