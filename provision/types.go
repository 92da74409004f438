package provision

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// Provisioner creates and deletes the storage of PersistentVolumes. A new one should also implement [ProvisionerContext] and
// [DeleterContext], whose methods are called in place of these. Methods are called by several goroutines at once, but never
// twice at the same time for the same volume.
type Provisioner interface {
	// Provision creates the storage and returns a PersistentVolume that describes it. It must be idempotent by
	// VolumeOptions.PVName: called again after a crash, it returns the same volume. An error means that no volume exists;
	// implement ProvisionerContext if that may be unknown. An IgnoredError means that the claim is another provisioner's: it
	// is neither reported nor retried.
	Provision(VolumeOptions) (*corev1.PersistentVolume, error)
	// Delete deletes the storage that Provision created for this PersistentVolume, not the object itself. It must succeed if
	// the storage does not exist any more. An IgnoredError means that the volume is another provisioner's.
	Delete(*corev1.PersistentVolume) error
}

// ProvisionerExt is implemented by a Provisioner whose failed calls may leave work in the background. If it is implemented,
// Provision is never called. [ProvisionerContext] is preferred.
type ProvisionerExt interface {
	// ProvisionExt is Provision that also returns what the call left behind. After ProvisioningInBackground it is called again
	// with the same options, even if the claim is deleted meanwhile, until it returns success or a final error, or until
	// FailedProvisionThreshold is reached.
	ProvisionExt(options VolumeOptions) (*corev1.PersistentVolume, ProvisioningState, error)
}

// ProvisionerContext is ProvisionerExt with a context, and the interface to implement in new code. If it is implemented,
// neither ProvisionExt nor Provision is called.
type ProvisionerContext interface {
	// ProvisionContext is ProvisionExt with a context, which ends when the controller stops or loses its Lease. An error that
	// is returned after that is never final, whatever the state is.
	ProvisionContext(ctx context.Context, options VolumeOptions) (*corev1.PersistentVolume, ProvisioningState, error)
}

// DeleterContext is Provisioner's Delete with a context. If it is implemented, Delete is never called.
type DeleterContext interface {
	// DeleteContext is Delete with a context, which ends when the controller stops or loses its Lease.
	DeleteContext(ctx context.Context, volume *corev1.PersistentVolume) error
}

// Qualifier is implemented by a Provisioner that skips some claims of its name.
type Qualifier interface {
	// ShouldProvision returns whether provisioning for the claim should be attempted. It is called for every unbound claim,
	// also for those of other provisioners. It must be fast and must not change the claim.
	ShouldProvision(*corev1.PersistentVolumeClaim) bool
}

// DeletionGuard is implemented by a Provisioner that keeps some volumes from being deleted.
type DeletionGuard interface {
	// ShouldDelete returns whether deleting the PV should be attempted. It must be fast and must not change the volume.
	ShouldDelete(volume *corev1.PersistentVolume) bool
}

// DeletionNotifier is implemented by a Provisioner that observes when a deletion which failed may succeed. Without it, such a
// deletion is retried when its backoff ends.
type DeletionNotifier interface {
	// NotifyDeletable runs while the controller works, until ctx ends. It calls notify with the name of a PersistentVolume
	// whose deletion may succeed; notify does not block, and has no effect unless the deletion has failed. An error is
	// logged and does not end the controller.
	NotifyDeletable(ctx context.Context, notify func(volume string)) error
}

// ClaimNotifier is implemented by a Provisioner that observes when a call which failed may succeed, for instance because
// the source of the volume is ready. Without it, the claim is retried when its backoff ends.
type ClaimNotifier interface {
	// NotifyProvisionable runs while the controller works, until ctx ends. It calls notify with the UID of a claim whose next
	// call may succeed; notify does not block, and has no effect unless the last call failed or is being made. An error is
	// logged and does not end the controller.
	NotifyProvisionable(ctx context.Context, notify func(claim types.UID)) error
}

// BlockProvisioner is implemented by a Provisioner that may support raw block volumes.
type BlockProvisioner interface {
	Provisioner
	// SupportsBlock returns whether the provisioner supports raw block volumes.
	SupportsBlock() bool
}

// EventRecorderInjector is implemented by a Provisioner that records events on claims and volumes.
type EventRecorderInjector interface {
	// InjectEventRecorder is called once, when the controller begins to run and before all other methods.
	InjectEventRecorder(recorder record.EventRecorder)
}

// ProvisioningState is what a call of ProvisionContext or ProvisionExt left behind. It matters only with an error; without
// one, the volume exists.
type ProvisioningState string

const (
	// ProvisioningInBackground: provisioning may go on after the call, or a volume may exist.
	ProvisioningInBackground ProvisioningState = "Background"
	// ProvisioningFinished: the error is final; no volume exists and none is being created.
	ProvisioningFinished ProvisioningState = "Finished"
	// ProvisioningNoChange: the state is the same as before the call. At the first call for a claim that is
	// ProvisioningFinished.
	ProvisioningNoChange ProvisioningState = "NoChange"
	// ProvisioningReschedule: final like ProvisioningFinished, and the volume cannot be created for the selected node: the
	// scheduler selects another one. Without a selected node it is ProvisioningFinished. With an error of the API that an object does
	// not exist it is ProvisioningNoChange if an earlier call may have created a volume: nothing is known of that without a call.
	ProvisioningReschedule ProvisioningState = "Reschedule"
)

// IgnoredError is returned by a Provisioner, possibly wrapped, for an object of another provisioner, for which it did
// nothing. It is neither reported nor counted nor retried.
type IgnoredError struct {
	// Reason is logged.
	Reason string
}

// Error implements error.
func (e *IgnoredError) Error() string {
	return "ignored because " + e.Reason
}

// VolumeOptions describes the volume to provision. It is a copy: the Provisioner may keep and change it.
type VolumeOptions struct {
	// PersistentVolumeReclaimPolicy is the class's reclaim policy, Delete if the class names none.
	PersistentVolumeReclaimPolicy corev1.PersistentVolumeReclaimPolicy
	// PVName is the name of the PersistentVolume to return, the same at every call for one claim.
	PVName string
	// MountOptions are the class's mount options. They are not validated: an invalid one fails the mount.
	MountOptions []string
	// PVC is the claim. The volume returned must satisfy it: capacity, access modes, volume mode, labels.
	PVC *corev1.PersistentVolumeClaim
	// Parameters are the class's parameters.
	Parameters map[string]string
	// SelectedNode is the node that the scheduler selected, nil if the class binds immediately. Only its name may be set if
	// the Node is deleted while provisioning is in progress.
	SelectedNode *corev1.Node
	// AllowedTopologies are the class's topology constraints.
	AllowedTopologies []corev1.TopologySelectorTerm
	// StorageClass is the class, of which the fields above are parts. It is never nil.
	StorageClass *storagev1.StorageClass
}

// InfeasibleError is returned by a Provisioner, possibly wrapped, for a request that fails until the claim or its class
// changes. As with any error, the state is what the call left behind. The claim is retried at once when it, its StorageClass
// or its selected node changes, and otherwise after InfeasibleRetryInterval: the cause may also be something that the
// controller does not watch. It counts as a failure like any other, up to FailedProvisionThreshold.
type InfeasibleError struct {
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *InfeasibleError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *InfeasibleError) Unwrap() error { return e.Err }
