package types

import corev1 "k8s.io/api/core/v1"

// The sources of Pods.
const (
	// FileSource is static Pods of files, HTTPSource those of a URL, ApiserverSource the Pods bound to the node.
	FileSource      = "file"
	HTTPSource      = "http"
	ApiserverSource = "api"
	// AllSource is any of them.
	AllSource = "*"
)

// PodOperation is the kind of an update.
type PodOperation int

const (
	// SET means that these are all Pods of the source.
	SET PodOperation = iota
	// ADD means that the source has these Pods, too.
	ADD
	// DELETE means that these Pods are to be deleted gracefully.
	DELETE
	// REMOVE means that the source has these Pods no more.
	REMOVE
	// UPDATE means that these Pods' specs have changed.
	UPDATE
	// RECONCILE means that only these Pods' statuses have changed.
	RECONCILE
)

// PodUpdate is an update from a source. The Pods are shared and must not be modified.
type PodUpdate struct {
	Pods   []*corev1.Pod
	Op     PodOperation
	Source string
}

// SyncPodType is the reason of a Pod's sync.
type SyncPodType int

const (
	// SyncPodSync is for a Pod that did not change.
	SyncPodSync SyncPodType = iota
	// SyncPodUpdate is for one whose spec did.
	SyncPodUpdate
	// SyncPodCreate is for a new one.
	SyncPodCreate
	// SyncPodKill is for one that is to be killed, whatever its spec says.
	SyncPodKill
)

// String returns the name for logs.
func (t SyncPodType) String() string {
	switch t {
	case SyncPodCreate:
		return "create"
	case SyncPodUpdate:
		return "update"
	case SyncPodSync:
		return "sync"
	case SyncPodKill:
		return "kill"
	}
	return "unknown"
}

// Reservation has the resources of the node that Pods cannot use.
type Reservation struct {
	// System is for the machine's own daemons, Kubernetes for the kubelet and the runtime.
	System, Kubernetes corev1.ResourceList
}
