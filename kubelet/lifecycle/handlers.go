package lifecycle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PodAdmitAttributes is what an admission handler decides about.
type PodAdmitAttributes struct {
	// Pod wants to run; OtherPods do already.
	Pod       *corev1.Pod
	OtherPods []*corev1.Pod
}

// PodAdmitResult is an admission handler's verdict. Reason and Message become those of the Pod's status if it is not
// admitted.
type PodAdmitResult struct {
	Admit           bool
	Reason, Message string
}

// PodAdmitHandler decides whether the node takes a Pod. It must not block.
type PodAdmitHandler interface {
	Admit(attrs *PodAdmitAttributes) PodAdmitResult
}

// PodSyncLoopHandler asks for Pods to be looked at again.
type PodSyncLoopHandler interface {
	// ShouldSync reports whether the Pod is to be looked at now. It must not block.
	ShouldSync(pod *corev1.Pod) bool
}

// PodSyncLoopHandlers are several of them. Register adds to them before the node agent starts.
type PodSyncLoopHandlers []PodSyncLoopHandler

// AddPodSyncLoopHandler adds a handler.
func (h *PodSyncLoopHandlers) AddPodSyncLoopHandler(handler PodSyncLoopHandler) {
	*h = append(*h, handler)
}

// ShouldSync reports whether one of the handlers wants the Pod to be looked at.
func (h PodSyncLoopHandlers) ShouldSync(pod *corev1.Pod) bool {
	return slices.ContainsFunc(h, func(one PodSyncLoopHandler) bool { return one.ShouldSync(pod) })
}

// ShouldEvictResponse is what a PodSyncHandler thinks of a Pod. Reason and Message become those of the Pod's status if
// it is evicted.
type ShouldEvictResponse struct {
	Evict           bool
	Reason, Message string
}

// PodSyncHandler decides whether a Pod may go on.
type PodSyncHandler interface {
	// ShouldEvict is asked each time that something happened to the Pod. It must not block.
	ShouldEvict(pod *corev1.Pod) ShouldEvictResponse
}

// PodSyncHandlers are several of them.
type PodSyncHandlers []PodSyncHandler

// AddPodSyncHandler adds a handler.
func (h *PodSyncHandlers) AddPodSyncHandler(handler PodSyncHandler) { *h = append(*h, handler) }

// ShouldEvict is the first response that asks for eviction, or one that does not.
func (h PodSyncHandlers) ShouldEvict(pod *corev1.Pod) ShouldEvictResponse {
	for _, one := range h {
		if response := one.ShouldEvict(pod); response.Evict {
			return response
		}
	}
	return ShouldEvictResponse{}
}
