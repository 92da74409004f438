package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/provision/snapshot/api"
)

// The finalizers of the contract.
const (
	// FinalizerContent keeps a content until its snapshot is deleted.
	FinalizerContent = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	// FinalizerBound keeps a VolumeSnapshot until its content is deleted, if that is to be.
	FinalizerBound = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	// FinalizerSource keeps a VolumeSnapshot while a volume is being created from it.
	FinalizerSource = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"
	// FinalizerClaim keeps a claim while a snapshot of its volume is being taken.
	FinalizerClaim = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
)

// The annotations of the contract.
const (
	// AnnDefaultClass marks the default VolumeSnapshotClass of a driver, with the value "true".
	AnnDefaultClass = "snapshot.storage.kubernetes.io/is-default-class"
	// AnnBeingDeleted, on a content, allows its deletion: the VolumeSnapshot is being deleted.
	AnnBeingDeleted = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	// AnnBeingCreated, on a content, says that a CreateSnapshot call may have been made whose result is unknown.
	AnnBeingCreated = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
	// AnnDeletionSecretName and AnnDeletionSecretNamespace, on a content, name the Secret for DeleteSnapshot.
	AnnDeletionSecretName      = "snapshot.storage.kubernetes.io/deletion-secret-name"
	AnnDeletionSecretNamespace = "snapshot.storage.kubernetes.io/deletion-secret-namespace"
	// AnnYes is the value of the annotations that mark a state.
	AnnYes = "yes"
)

// contentPrefix begins the names of the contents that the binder creates.
const contentPrefix = "snapcontent-"

// ContentName returns the name of the content of a VolumeSnapshot that is taken from a claim.
func ContentName(uid types.UID) string { return contentPrefix + string(uid) }

// DriverName returns the name under which the driver is asked for the snapshot of a content; false if the content is not of
// a VolumeSnapshot.
func DriverName(content *api.VolumeSnapshotContent) (name string, ok bool) {
	uid := content.Spec.SnapshotRef.UID
	return "snapshot-" + string(uid), uid != ""
}

// parameterPrefix begins the parameters of a class that are for Kubernetes and not for the driver.
const parameterPrefix = "csi.storage.k8s.io/"

// DriverParameters returns the parameters of a class that are for the driver. A parameter with the reserved prefix that is unknown is an
// error: it may be a Secret whose name has a typing error.
func DriverParameters(class map[string]string) (map[string]string, error) {
	parameters := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(class)) { // so that the same class always fails with the same error
		switch {
		case !strings.HasPrefix(key, parameterPrefix):
			parameters[key] = class[key]
		case !isSecretParameter(key):
			return nil, fmt.Errorf("unknown parameter %q: the prefix %q is reserved", key, parameterPrefix)
		}
	}
	return parameters, nil
}

// IsReady reports whether volumes can be created from the VolumeSnapshot.
func IsReady(snapshot *api.VolumeSnapshot) bool {
	status := snapshot.Status
	return status != nil && status.ReadyToUse != nil && *status.ReadyToUse && status.BoundContentName != nil
}

// AddMetadata adds the names of the VolumeSnapshot and of the content to the parameters of a CreateSnapshot call.
func AddMetadata(parameters map[string]string, content *api.VolumeSnapshotContent) map[string]string {
	if parameters == nil {
		parameters = map[string]string{}
	}
	parameters[parameterPrefix+"volumesnapshot/name"] = content.Spec.SnapshotRef.Name
	parameters[parameterPrefix+"volumesnapshot/namespace"] = content.Spec.SnapshotRef.Namespace
	parameters[parameterPrefix+"volumesnapshotcontent/name"] = content.Name
	return parameters
}
