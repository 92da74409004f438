package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
)

// The finalizers and annotations of the contract of VolumeGroupSnapshots (KEP-3476).
const (
	// FinalizerGroupContent keeps a group's content until its snapshots are deleted.
	FinalizerGroupContent = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"
	// FinalizerGroup keeps a VolumeGroupSnapshot until its snapshots and its content are deleted, if they are to be.
	FinalizerGroup = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection"
	// FinalizerMember keeps a VolumeSnapshot of a group until the group is deleted.
	FinalizerMember = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"
	// AnnDefaultGroupClass marks the default VolumeGroupSnapshotClass of a driver, with the value "true".
	AnnDefaultGroupClass = "groupsnapshot.storage.kubernetes.io/is-default-class"
	// AnnGroupBeingDeleted, on a group's content, allows its deletion: the VolumeGroupSnapshot is being deleted.
	AnnGroupBeingDeleted = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted"
	// AnnGroupBeingCreated, on a group's content, says that a CreateVolumeGroupSnapshot call may have been made whose result
	// is unknown.
	AnnGroupBeingCreated = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created"
	// AnnGroupDeletionSecretName and AnnGroupDeletionSecretNamespace, on a group's content, name the Secret for
	// DeleteVolumeGroupSnapshot.
	AnnGroupDeletionSecretName      = "groupsnapshot.storage.kubernetes.io/deletion-secret-name"
	AnnGroupDeletionSecretNamespace = "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace"
	// AnnGroupHandle, on a VolumeSnapshotContent, is the driver's handle of the group that it is of. Such a snapshot is
	// taken and deleted with the group.
	AnnGroupHandle = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"
)

// The purposes of the Secrets in the parameters of a VolumeGroupSnapshotClass.
const (
	// SecretGroup is for CreateVolumeGroupSnapshot and DeleteVolumeGroupSnapshot.
	SecretGroup = "group-snapshotter"
	// SecretGroupGet is for GetVolumeGroupSnapshot.
	SecretGroupGet = "group-snapshotter-get"
)

// GroupContentName returns the name of the content of a VolumeGroupSnapshot that is taken.
func GroupContentName(uid types.UID) string { return "groupsnapcontent-" + string(uid) }

// GroupDriverName returns the name under which the driver is asked for the group of a content; false if the content is not
// of a VolumeGroupSnapshot.
func GroupDriverName(content *groupapi.VolumeGroupSnapshotContent) (name string, ok bool) {
	uid := content.Spec.GroupRef.UID
	return "groupsnapshot-" + string(uid), uid != ""
}

// MemberName returns the name of the VolumeSnapshot of one volume of a group, MemberContentName that of its content.
func MemberName(group types.UID, volumeHandle string) string {
	return "snapshot-" + memberHash(group, volumeHandle)
}

// MemberContentName is documented with MemberName.
func MemberContentName(group types.UID, volumeHandle string) string {
	return contentPrefix + memberHash(group, volumeHandle)
}

func memberHash(group types.UID, volumeHandle string) string {
	sum := sha256.Sum256([]byte(string(group) + volumeHandle))
	return hex.EncodeToString(sum[:])
}

// GroupOf returns the VolumeGroupSnapshot that a VolumeSnapshot is a member of, nil if it is of none. Other API groups have a kind of
// that name, too: their snapshots are not ours to bind or to delete.
func GroupOf(s *api.VolumeSnapshot) *metav1.OwnerReference {
	for i := range s.OwnerReferences {
		owner := &s.OwnerReferences[i]
		if group, _, _ := strings.Cut(owner.APIVersion, "/"); owner.Kind == groupapi.KindGroup && group == groupapi.GroupName {
			return owner
		}
	}
	return nil
}

// BoundByGroup reports whether the controller of groups binds a VolumeSnapshot to its content: it is a member of a group that is taken. A
// user makes the members of a group that exists already, each with the content of a snapshot that exists already.
func BoundByGroup(s *api.VolumeSnapshot) bool {
	return GroupOf(s) != nil && s.Spec.Source.ContentName == nil
}

// IsMember reports whether the snapshot of a content is taken and deleted with a group.
func IsMember(content *api.VolumeSnapshotContent) bool {
	return content.Annotations[AnnGroupHandle] != "" || content.Status != nil && content.Status.GroupHandle != nil
}

// AddGroupMetadata adds the names of the VolumeGroupSnapshot and of the content to the parameters of a
// CreateVolumeGroupSnapshot call.
func AddGroupMetadata(parameters map[string]string, content *groupapi.VolumeGroupSnapshotContent) map[string]string {
	if parameters == nil {
		parameters = map[string]string{}
	}
	parameters[parameterPrefix+"volumegroupsnapshot/name"] = content.Spec.GroupRef.Name
	parameters[parameterPrefix+"volumegroupsnapshot/namespace"] = content.Spec.GroupRef.Namespace
	parameters[parameterPrefix+"volumegroupsnapshotcontent/name"] = content.Name
	return parameters
}
