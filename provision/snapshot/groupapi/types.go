package groupapi

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/provision/snapshot/api"
)

// GroupName is the name of the API group.
const GroupName = "groupsnapshot.storage.k8s.io"

// GroupVersion is the version of the API group that this package has.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1beta2"}

// KindGroup is the kind of a VolumeGroupSnapshot, KindContent that of its content.
const (
	KindGroup   = "VolumeGroupSnapshot"
	KindContent = "VolumeGroupSnapshotContent"
)

// The resources of the group.
const (
	ResourceGroups   = "volumegroupsnapshots"
	ResourceContents = "volumegroupsnapshotcontents"
	ResourceClasses  = "volumegroupsnapshotclasses"
)

// Resource returns a resource of the group.
func Resource(name string) schema.GroupResource {
	return GroupVersion.WithResource(name).GroupResource()
}

// VolumeGroupSnapshot is a user's request for snapshots of several claims at one moment.
type VolumeGroupSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   VolumeGroupSnapshotSpec    `json:"spec"`
	Status *VolumeGroupSnapshotStatus `json:"status,omitempty"`
}

// VolumeGroupSnapshotSpec is what the user requests.
type VolumeGroupSnapshotSpec struct {
	Source    VolumeGroupSnapshotSource `json:"source"`
	ClassName *string                   `json:"volumeGroupSnapshotClassName,omitempty"`
}

// VolumeGroupSnapshotSource selects claims to take snapshots of, or names a content that exists. One of them is set.
type VolumeGroupSnapshotSource struct {
	Selector    *metav1.LabelSelector `json:"selector,omitempty"`
	ContentName *string               `json:"volumeGroupSnapshotContentName,omitempty"`
}

// VolumeGroupSnapshotStatus is what is known of the group.
type VolumeGroupSnapshotStatus struct {
	BoundContentName *string      `json:"boundVolumeGroupSnapshotContentName,omitempty"`
	CreationTime     *metav1.Time `json:"creationTime,omitempty"`
	ReadyToUse       *bool        `json:"readyToUse,omitempty"`
	Error            *api.Error   `json:"error,omitempty"`
}

// VolumeGroupSnapshotContent is a group of snapshots in the storage.
type VolumeGroupSnapshotContent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   VolumeGroupSnapshotContentSpec    `json:"spec"`
	Status *VolumeGroupSnapshotContentStatus `json:"status,omitempty"`
}

// VolumeGroupSnapshotContentSpec says what the snapshots are of, and for which VolumeGroupSnapshot.
type VolumeGroupSnapshotContentSpec struct {
	GroupRef       corev1.ObjectReference           `json:"volumeGroupSnapshotRef"`
	DeletionPolicy api.DeletionPolicy               `json:"deletionPolicy"`
	Driver         string                           `json:"driver"`
	ClassName      *string                          `json:"volumeGroupSnapshotClassName,omitempty"`
	Source         VolumeGroupSnapshotContentSource `json:"source"`
}

// VolumeGroupSnapshotContentSource has the handles of the volumes to take snapshots of, or those of snapshots that exist.
type VolumeGroupSnapshotContentSource struct {
	VolumeHandles []string `json:"volumeHandles,omitempty"`
	Handles       *Handles `json:"groupSnapshotHandles,omitempty"`
}

// Handles are the driver's handles of a group that exists, and of its snapshots.
type Handles struct {
	Group     string   `json:"volumeGroupSnapshotHandle"`
	Snapshots []string `json:"volumeSnapshotHandles"`
}

// VolumeGroupSnapshotContentStatus is what the driver reports.
type VolumeGroupSnapshotContentStatus struct {
	GroupHandle  *string        `json:"volumeGroupSnapshotHandle,omitempty"`
	CreationTime *metav1.Time   `json:"creationTime,omitempty"`
	ReadyToUse   *bool          `json:"readyToUse,omitempty"`
	Error        *api.Error     `json:"error,omitempty"`
	Snapshots    []SnapshotInfo `json:"volumeSnapshotInfoList,omitempty"`
}

// SnapshotInfo is one snapshot of a group. CreationTime is in nanoseconds since 1970, RestoreSize in bytes.
type SnapshotInfo struct {
	VolumeHandle   string `json:"volumeHandle,omitempty"`
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
	CreationTime   *int64 `json:"creationTime,omitempty"`
	ReadyToUse     *bool  `json:"readyToUse,omitempty"`
	RestoreSize    *int64 `json:"restoreSize,omitempty"`
}

// VolumeGroupSnapshotClass is a way in which a driver takes group snapshots.
type VolumeGroupSnapshotClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Driver         string             `json:"driver"`
	Parameters     map[string]string  `json:"parameters,omitempty"`
	DeletionPolicy api.DeletionPolicy `json:"deletionPolicy"`
}

// The lists of the kinds.
type (
	VolumeGroupSnapshotList        = api.List[VolumeGroupSnapshot]
	VolumeGroupSnapshotContentList = api.List[VolumeGroupSnapshotContent]
	VolumeGroupSnapshotClassList   = api.List[VolumeGroupSnapshotClass]
)
