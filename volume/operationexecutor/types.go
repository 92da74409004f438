package operationexecutor

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/volume"
)

// ErrAlreadyExists is the error of an operation that was not started because a conflicting one is pending.
var ErrAlreadyExists = keyed.ErrAlreadyExists

// BackoffError is the error of an operation that was not started because the last one of its kind failed too recently.
type BackoffError = keyed.BackoffError

// The kinds of operations, as IsOperationSafeToRetry takes them and metrics show them.
const (
	OperationAttach = "volume_attach"
	OperationDetach = "volume_detach"
	OperationVerify = "verify_volumes_are_attached_per_node"
)

// VolumeToAttach is a volume that should be attached to a node.
type VolumeToAttach struct {
	// MultiAttachErrorReported is true if all of ScheduledPods have an event that the volume is attached elsewhere.
	MultiAttachErrorReported bool
	// VolumeName is the unique name of the volume.
	VolumeName corev1.UniqueVolumeName
	// VolumeSpec is the volume; it is shared and never written to.
	VolumeSpec *volume.Spec
	// NodeName is where it should be attached.
	NodeName types.NodeName
	// ScheduledPods are the Pods on the node that use the volume. They are shared and never written to.
	ScheduledPods []*corev1.Pod
	// PodsToNotify are those of ScheduledPods that have no such event yet.
	PodsToNotify []*corev1.Pod
}

// AttachedVolume is a volume that is, or may be, attached to a node.
type AttachedVolume struct {
	// VolumeName is the unique name of the volume.
	VolumeName corev1.UniqueVolumeName
	// VolumeSpec is the volume, nil if it is known by name only. It is shared and never written to.
	VolumeSpec *volume.Spec
	// NodeName is the node.
	NodeName types.NodeName
	// DevicePath is what the plugin returned on attaching. It may be empty.
	DevicePath string
	// Generation changes with every change of this attachment's state. See ApplyVerdict.
	Generation uint64
}

// ActualStateOfWorldAttacherUpdater is the part of the actual state of the world that attaching and detaching write.
// Its methods are safe for concurrent use.
type ActualStateOfWorldAttacherUpdater interface {
	// MarkVolumeAsAttached records that the volume is certainly attached, and reports it in the node's status. An empty
	// name is derived from the spec.
	MarkVolumeAsAttached(name corev1.UniqueVolumeName, spec *volume.Spec, node types.NodeName, devicePath string) error
	// MarkVolumeAsUncertain records that the volume may be attached. A nil spec does not replace a known one.
	MarkVolumeAsUncertain(name corev1.UniqueVolumeName, spec *volume.Spec, node types.NodeName) error
	// MarkVolumeAsDetached records that the volume is certainly not attached.
	MarkVolumeAsDetached(name corev1.UniqueVolumeName, node types.NodeName)
	// RemoveVolumeFromReportAsAttached removes the volume from the list in the node's status, because it is going to be
	// detached. It returns an error if the volume is not on the list.
	RemoveVolumeFromReportAsAttached(name corev1.UniqueVolumeName, node types.NodeName) error
	// AddVolumeToReportAsAttached undoes RemoveVolumeFromReportAsAttached. Without such an attachment it does nothing.
	AddVolumeToReportAsAttached(name corev1.UniqueVolumeName, node types.NodeName)
	// ApplyVerdict records what a plugin found, unless the attachment has changed since it had the given generation. It
	// reports whether it did.
	ApplyVerdict(name corev1.UniqueVolumeName, node types.NodeName, generation uint64, verdict Verdict) bool
}

// OperationExecutor attaches volumes to nodes and detaches them. Each operation runs in its own goroutine with the
// context it was given; when it ends, the actual state of the world contains the result. A method that starts an
// operation returns an error, and does nothing, if a conflicting operation is pending (ErrAlreadyExists) or if the last
// one of its kind failed too recently (*BackoffError). It is safe for concurrent use.
type OperationExecutor interface {
	// AttachVolume starts to attach the volume.
	AttachVolume(ctx context.Context, volume VolumeToAttach, actual ActualStateOfWorldAttacherUpdater) error
	// DetachVolume starts to detach the volume. With verifySafeToDetach it fails if the node object, read from the
	// API server, has the volume in status.volumesInUse.
	DetachVolume(ctx context.Context, volume AttachedVolume, verifySafeToDetach bool,
		actual ActualStateOfWorldAttacherUpdater) error
	// VerifyVolumesAreAttached starts to verify with the plugins that the volumes are still attached. It does nothing
	// while an earlier verification runs.
	VerifyVolumesAreAttached(ctx context.Context, volumes map[types.NodeName][]AttachedVolume,
		actual ActualStateOfWorldAttacherUpdater)
	// VerifyVolumesAreAttachedPerNode verifies the volumes of one node and returns when that is done. It does not wait
	// for other operations: an attachment that changed meanwhile is not updated.
	VerifyVolumesAreAttachedPerNode(ctx context.Context, volumes []AttachedVolume, node types.NodeName,
		actual ActualStateOfWorldAttacherUpdater) error
	// IsOperationPending reports whether an operation on the volume is pending: on the node, or, if node is empty, as
	// it is for exclusive volumes, on any node.
	IsOperationPending(name corev1.UniqueVolumeName, node types.NodeName) bool
	// IsOperationSafeToRetry reports whether the operation could start now: nothing is pending and there is no
	// backoff after a failure of the same operation.
	IsOperationSafeToRetry(name corev1.UniqueVolumeName, node types.NodeName, operation string) bool
}

// BackoffTracker is an OperationExecutor whose backoffs can be read and ended.
type BackoffTracker interface {
	// RetryAfter returns the rest of the operation's backoff, 0 if there is none.
	RetryAfter(name corev1.UniqueVolumeName, node types.NodeName, operation string) time.Duration
	// ForgetFailures ends the backoff, because something happened that makes success likely.
	ForgetFailures(name corev1.UniqueVolumeName, node types.NodeName)
}

// CompletionNotifier is an OperationExecutor that reports the end of operations.
type CompletionNotifier interface {
	// OnCompletion registers a function that is called after each attach and detach, when the next operation on the
	// volume may start. OnCompletion must be called before the first operation; f must not block.
	OnCompletion(f func(name corev1.UniqueVolumeName, node types.NodeName))
}
