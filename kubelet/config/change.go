package config

import (
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/internal/podutil"
)

// Annotations that the kubelet sets on its own copy of a Pod. They are never written to the API.
const (
	// SourceAnnotation names the Pod's source: "api", "file" or "http".
	SourceAnnotation = podutil.SourceAnnotation
	// SeenAnnotation is when the kubelet first saw the Pod, RFC 3339 with nanoseconds.
	SeenAnnotation = "kubernetes.io/config.seen"
	// HashAnnotation is a static Pod's identity; for a Pod of the API it is absent.
	HashAnnotation = "kubernetes.io/config.hash"
)

// SourceAPI is the value of SourceAnnotation for Pods of the API server.
const SourceAPI = podutil.SourceAPI

// Op is what happened to a Pod, as the node sees it.
type Op int

const (
	// Add is a Pod that was not known.
	Add Op = iota
	// Update is a known Pod whose desired state changed.
	Update
	// Delete is a known Pod that is to terminate gracefully: its deletion timestamp is set.
	Delete
	// Reconcile is a known Pod of which only the status changed. No container changes.
	Reconcile
	// Remove is a Pod that is no longer in the source. Its containers are stopped.
	Remove
)

// Change is one change of one Pod. The Pod is shared and must not be modified.
type Change struct {
	Op  Op
	Pod *corev1.Pod
}

// changeOp returns the kind of change between two versions of one Pod, and false if there is none.
func changeOp(old, next *corev1.Pod) (Op, bool) {
	switch {
	case !sameDesired(old, next):
		if next.DeletionTimestamp != nil {
			return Delete, true
		}
		return Update, true
	case !apiequality.Semantic.DeepEqual(old.Status, next.Status):
		return Reconcile, true
	}
	return Reconcile, false
}

// sameDesired reports whether nothing changed that a Pod's worker acts on.
func sameDesired(old, next *corev1.Pod) bool {
	return old.Generation == next.Generation &&
		old.DeletionTimestamp.Equal(next.DeletionTimestamp) &&
		apiequality.Semantic.DeepEqual(old.DeletionGracePeriodSeconds, next.DeletionGracePeriodSeconds) &&
		apiequality.Semantic.DeepEqual(old.Labels, next.Labels) &&
		sameAnnotations(old.Annotations, next.Annotations) &&
		apiequality.Semantic.DeepEqual(old.Spec, next.Spec)
}

func sameAnnotations(a, b map[string]string) bool {
	count := func(m map[string]string) (n int) {
		for key := range m {
			if !isLocalAnnotation(key) {
				n++
			}
		}
		return n
	}
	if count(a) != count(b) {
		return false
	}
	for key, value := range a {
		if other, ok := b[key]; !isLocalAnnotation(key) && (!ok || other != value) {
			return false
		}
	}
	return true
}

func isLocalAnnotation(key string) bool {
	return key == SourceAnnotation || key == SeenAnnotation || key == HashAnnotation
}
