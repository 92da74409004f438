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

// PodOperation is what an update says of its Pods.
type PodOperation int

const (
	// SET says that these are all Pods of the source.
	SET PodOperation = iota
	// ADD says that the source has these Pods too now.
	ADD
	// DELETE says that these Pods are to end gracefully.
	DELETE
	// REMOVE says that the source does not have these Pods any more.
	REMOVE
	// UPDATE says that these Pods' wanted state has changed.
	UPDATE
	// RECONCILE says that only these Pods' statuses have changed.
	RECONCILE
)

// PodUpdate is an update from a source. The Pods are shared and must not be modified.
type PodUpdate struct {
	Pods   []*corev1.Pod
	Op     PodOperation
	Source string
}

// SyncPodType is why a Pod's worker is to look at it.
type SyncPodType int

const (
	// SyncPodSync is for a Pod that did not change.
	SyncPodSync SyncPodType = iota
	// SyncPodUpdate is for one whose spec did.
	SyncPodUpdate
	// SyncPodCreate is for a new one.
	SyncPodCreate
	// SyncPodKill is for one that is to end, whatever its spec says.
	SyncPodKill
)

// String is the name that upstream logs.
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

// Reservation is what of the node is not for Pods.
type Reservation struct {
	// System is for the machine's own programs, Kubernetes for the node agent and the runtime.
	System, Kubernetes corev1.ResourceList
}
