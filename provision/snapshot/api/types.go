package api

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the name of the API group.
const GroupName = "snapshot.storage.k8s.io"

// GroupVersion is the version of the API group that this package has.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

// KindSnapshot is the kind of a VolumeSnapshot, KindContent that of its content.
const (
	KindSnapshot = "VolumeSnapshot"
	KindContent  = "VolumeSnapshotContent"
)

// The resources of the group.
const (
	ResourceSnapshots = "volumesnapshots"
	ResourceContents  = "volumesnapshotcontents"
	ResourceClasses   = "volumesnapshotclasses"
)

// Resource returns a resource of the group.
func Resource(name string) schema.GroupResource {
	return GroupVersion.WithResource(name).GroupResource()
}

// DeletionPolicy says what happens to a snapshot in the storage when its VolumeSnapshot is deleted.
type DeletionPolicy string

// The deletion policies.
const (
	// Delete deletes the snapshot in the storage, too.
	Delete DeletionPolicy = "Delete"
	// Retain keeps the content and the snapshot in the storage.
	Retain DeletionPolicy = "Retain"
)

// VolumeSnapshot is a user's request for a snapshot.
type VolumeSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   VolumeSnapshotSpec    `json:"spec"`
	Status *VolumeSnapshotStatus `json:"status,omitempty"`
}

// VolumeSnapshotSpec is what the user requests.
type VolumeSnapshotSpec struct {
	Source    VolumeSnapshotSource `json:"source"`
	ClassName *string              `json:"volumeSnapshotClassName,omitempty"`
}

// VolumeSnapshotSource names a claim to take a snapshot of, or a content that exists. One of them is set.
type VolumeSnapshotSource struct {
	ClaimName   *string `json:"persistentVolumeClaimName,omitempty"`
	ContentName *string `json:"volumeSnapshotContentName,omitempty"`
}

// VolumeSnapshotStatus is what is known of the snapshot.
type VolumeSnapshotStatus struct {
	BoundContentName *string            `json:"boundVolumeSnapshotContentName,omitempty"`
	CreationTime     *metav1.Time       `json:"creationTime,omitempty"`
	ReadyToUse       *bool              `json:"readyToUse,omitempty"`
	RestoreSize      *resource.Quantity `json:"restoreSize,omitempty"`
	Error            *Error             `json:"error,omitempty"`
	GroupName        *string            `json:"volumeGroupSnapshotName,omitempty"`
}

// Error is the last error that occurred.
type Error struct {
	Time    *metav1.Time `json:"time,omitempty"`
	Message *string      `json:"message,omitempty"`
}

// VolumeSnapshotContent is a snapshot in the storage.
type VolumeSnapshotContent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   VolumeSnapshotContentSpec    `json:"spec"`
	Status *VolumeSnapshotContentStatus `json:"status,omitempty"`
}

// VolumeSnapshotContentSpec says what the snapshot is of, and for which VolumeSnapshot.
type VolumeSnapshotContentSpec struct {
	SnapshotRef      corev1.ObjectReference       `json:"volumeSnapshotRef"`
	DeletionPolicy   DeletionPolicy               `json:"deletionPolicy"`
	Driver           string                       `json:"driver"`
	ClassName        *string                      `json:"volumeSnapshotClassName,omitempty"`
	Source           VolumeSnapshotContentSource  `json:"source"`
	SourceVolumeMode *corev1.PersistentVolumeMode `json:"sourceVolumeMode,omitempty"`
}

// VolumeSnapshotContentSource has the handle of the volume to take a snapshot of, or that of a snapshot that exists.
type VolumeSnapshotContentSource struct {
	VolumeHandle   *string `json:"volumeHandle,omitempty"`
	SnapshotHandle *string `json:"snapshotHandle,omitempty"`
}

// VolumeSnapshotContentStatus is what the driver reports. CreationTime is in nanoseconds since 1970, RestoreSize in bytes.
type VolumeSnapshotContentStatus struct {
	SnapshotHandle *string `json:"snapshotHandle,omitempty"`
	CreationTime   *int64  `json:"creationTime,omitempty"`
	RestoreSize    *int64  `json:"restoreSize,omitempty"`
	ReadyToUse     *bool   `json:"readyToUse,omitempty"`
	Error          *Error  `json:"error,omitempty"`
	GroupHandle    *string `json:"volumeGroupSnapshotHandle,omitempty"`
}

// VolumeSnapshotClass is a way in which a driver takes snapshots.
type VolumeSnapshotClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Driver         string            `json:"driver"`
	Parameters     map[string]string `json:"parameters,omitempty"`
	DeletionPolicy DeletionPolicy    `json:"deletionPolicy"`
}

// VolumeSnapshotList is a list of VolumeSnapshots.
type VolumeSnapshotList = List[VolumeSnapshot]

// VolumeSnapshotContentList is a list of VolumeSnapshotContents.
type VolumeSnapshotContentList = List[VolumeSnapshotContent]

// VolumeSnapshotClassList is a list of VolumeSnapshotClasses.
type VolumeSnapshotClassList = List[VolumeSnapshotClass]

// List is a list of objects of one kind.
type List[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []T `json:"items"`
}
