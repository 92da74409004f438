package provision

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// Provisioner makes and removes the storage behind PersistentVolumes. Its methods are called from
// several goroutines at once, but never twice at the same time for the same volume.
type Provisioner interface {
	// Provision creates the storage and returns a PersistentVolume that describes it. It must be
	// idempotent by VolumeOptions.PVName: called again after a crash, it returns the same volume. An
	// error says that no volume exists; use ProvisionerExt if that cannot be said. An IgnoredError says
	// that the claim belongs to somebody else: nothing was done, nothing is reported or retried.
	Provision(VolumeOptions) (*corev1.PersistentVolume, error)
	// Delete removes the storage that Provision made for this PersistentVolume, not the object itself.
	// It must succeed if the storage is gone already. An IgnoredError says that the volume belongs to
	// somebody else.
	Delete(*corev1.PersistentVolume) error
}

// ProvisionerExt is implemented by a Provisioner whose failed calls may leave work going on in the
// background. If it is there, Provision is never called.
type ProvisionerExt interface {
	// ProvisionExt is Provision with a statement about what the call left behind. After
	// ProvisioningInBackground it is called again with the same options, even if the claim is deleted
	// meanwhile, until it reports success or a final error (or FailedProvisionThreshold is reached).
	ProvisionExt(options VolumeOptions) (*corev1.PersistentVolume, ProvisioningState, error)
}

// ProvisionerContext is ProvisionerExt with a context. If it is there, neither ProvisionExt nor
// Provision is called. The context ends when the controller is stopped or loses its lease; an error
// returned after that is never taken as final, whatever the state says.
type ProvisionerContext interface {
	ProvisionContext(ctx context.Context, options VolumeOptions) (*corev1.PersistentVolume, ProvisioningState, error)
}

// DeleterContext is Provisioner's Delete with a context. If it is there, Delete is not called. The
// context ends when the controller is stopped or loses its lease.
type DeleterContext interface {
	DeleteContext(ctx context.Context, volume *corev1.PersistentVolume) error
}

// Qualifier is implemented by a Provisioner that wants to refuse claims before anything else happens.
type Qualifier interface {
	// ShouldProvision returns whether provisioning for the claim should be attempted. It is asked for
	// every unbound claim, also for those of other provisioners, must be quick and must not change the claim.
	ShouldProvision(*corev1.PersistentVolumeClaim) bool
}

// DeletionGuard is implemented by a Provisioner that wants to keep some volumes from being deleted.
type DeletionGuard interface {
	// ShouldDelete returns whether deleting the PV should be attempted. It must be quick and
	// must not change the volume.
	ShouldDelete(volume *corev1.PersistentVolume) bool
}

// DeletionNotifier is implemented by a Provisioner that learns when a deletion which failed may succeed: what stood in its
// way is gone. Without it, such a deletion waits for the end of its backoff.
type DeletionNotifier interface {
	// NotifyDeletable is run beside the controller for as long as it works, until ctx ends. It calls wake with the names
	// of PersistentVolumes; wake returns at once, and means nothing for a volume whose deletion has not failed. An error
	// is logged and ends the waking, no more.
	NotifyDeletable(ctx context.Context, wake func(volume string)) error
}

// BlockProvisioner is implemented by a Provisioner to say whether it can make raw block volumes.
type BlockProvisioner interface {
	Provisioner
	// SupportsBlock returns whether provisioner supports block volume.
	SupportsBlock() bool
}

// EventRecorderInjector is implemented by a Provisioner that reports events of its own on claims and volumes.
type EventRecorderInjector interface {
	// InjectEventRecorder is called once, when the controller begins to run and before it asks for anything else.
	InjectEventRecorder(recorder record.EventRecorder)
}

// ProvisioningState says what a call of ProvisionExt left behind. It matters only beside an error;
// without one, the volume exists.
type ProvisioningState string

const (
	// ProvisioningInBackground: provisioning may go on after the call, or a volume may exist.
	ProvisioningInBackground ProvisioningState = "Background"
	// ProvisioningFinished: the error is final; no volume exists and none is being made.
	ProvisioningFinished ProvisioningState = "Finished"
	// ProvisioningNoChange: the call found out nothing; what was known before still holds. At the first
	// call for a claim it is the same as ProvisioningFinished.
	ProvisioningNoChange ProvisioningState = "NoChange"
	// ProvisioningReschedule: final like ProvisioningFinished, and the selected node cannot have the
	// volume: the scheduler is asked to select another one. Without a selected node it is
	// ProvisioningFinished. (Not in the first version of this interface.)
	ProvisioningReschedule ProvisioningState = "Reschedule"
)

// IgnoredError is returned by a Provisioner, possibly wrapped, to say that the object belongs to another
// provisioner and that no action was taken. It is neither reported nor counted nor retried.
type IgnoredError struct {
	// Reason is for the log.
	Reason string
}

// Error implements error.
func (e *IgnoredError) Error() string {
	return "ignored because " + e.Reason
}

// VolumeOptions is all that a Provisioner is told about the volume to make. It is a copy: the
// Provisioner may keep and change it.
type VolumeOptions struct {
	// PersistentVolumeReclaimPolicy is the class's reclaim policy, Delete if the class names none.
	PersistentVolumeReclaimPolicy corev1.PersistentVolumeReclaimPolicy
	// PVName is the name of the PersistentVolume to return, the same at every call for one claim.
	PVName string
	// MountOptions are the class's mount options. They are not validated: a wrong one fails the mount.
	MountOptions []string
	// PVC is the claim. The volume returned must satisfy it: capacity, access modes, volume mode, labels.
	PVC *corev1.PersistentVolumeClaim
	// Parameters are the class's parameters.
	Parameters map[string]string
	// SelectedNode is the node that the scheduler selected, nil if the class binds immediately. If the
	// node is gone while provisioning is under way, only its name may be set.
	SelectedNode *corev1.Node
	// AllowedTopologies are the class's topology constraints.
	AllowedTopologies []corev1.TopologySelectorTerm
}

// InfeasibleError is returned by a Provisioner, possibly wrapped, to say that the request is wrong as it stands: made
// again it fails again, until somebody changes the claim or its class. Beside it the state says, as beside any error, what
// the call left behind. The claim is tried again at once when it, its StorageClass or its selected node changes, and
// otherwise only after InfeasibleRetryInterval: what is wrong may also lie where the controller does not look. It counts as
// a failure like any other, up to FailedProvisionThreshold.
type InfeasibleError struct {
	// Err is what is wrong.
	Err error
}

// Error implements error.
func (e *InfeasibleError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *InfeasibleError) Unwrap() error { return e.Err }
