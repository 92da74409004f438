package volume

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/volumehealth"
)

// Plugin sets one kind of volume up for a Pod, and takes it down. Every plugin must pass volume/testsuite.
//
// # Concurrency
//
// Calls for different directories run at the same time. The caller never runs two calls for one directory at once.
//
// # Crashes
//
// The process may be killed between any two system calls of a plugin. There is no journal: what a call finds on disk
// and in the mount table is all that is known about earlier calls. Hence
//
//   - SetUp on a directory that an earlier SetUp left half-made, or complete, must succeed and give the same result.
//     It must not lose what a Pod has already written there.
//   - TearDown on a directory that is half-made, complete, or absent must succeed and leave nothing. It gets the
//     directory only: no Pod and no API object, for both may be gone by then.
//
// # Data
//
// TearDown never deletes data that outlives the Pod. A plugin whose directory is a mount of something lasting
// unmounts it and then removes the empty directory with rmdir, never recursively; a plugin whose data dies with the
// Pod removes its tree without leaving the file system that the directory is on (see mounts.RemoveTree).
//
// # Errors
//
// A failed SetUp leaves nothing that TearDown could not remove. An error is final unless it is marked with Uncertain:
// final means that the volume is certainly not set up, uncertain that it may be, so that TearDown must run before the
// volume may be considered gone, even if the Pod goes away at once. A request for something that the plugin does not
// support gives an UnsupportedError that names the field. Errors name the object and the step, and the remedy where
// the user can act; they never contain the content of a Secret.
//
// # Time
//
// Calls return soon after ctx ends. SetUp does not wait for an object of the API to appear: it fails, and is called
// again when the object changes.
type Plugin interface {
	// Name is the plugin's qualified name, such as "kubernetes.io/empty-dir". With EscapeName it names the
	// directory that holds the plugin's volumes on disk, and is thereby part of the format on disk for ever.
	Name() string

	// CanSupport reports whether this plugin is the one for the volume. It looks only at which source is set.
	CanSupport(spec Spec) bool

	// SetUp makes the volume ready for the Pod's containers and returns its path. See above for what may have run
	// before.
	SetUp(ctx context.Context, req Request) (Mount, error)

	// TearDown undoes SetUp, given the Dir of its Request.
	TearDown(ctx context.Context, dir string) error
}

// Refresher is a Plugin whose volumes follow objects of the API. Refresh is called, after a successful SetUp, each
// time that an object which the Pod refers to, a token of the Pod, or the Pod itself changed. It must replace the
// content atomically and must write nothing if the content is unchanged. After an error the old content stays.
type Refresher interface {
	Plugin
	Refresh(ctx context.Context, req Request) error
}

// Remounter is a Refresher some of whose volumes require a periodic Refresh even if no change is known.
type Remounter interface {
	Refresher
	// RequiresRemount reports whether this volume requires it.
	RequiresRemount(ctx context.Context, spec Spec) bool
}

// Attachable is a Plugin whose volumes may be devices of the node: attached to it and made usable on it once, however
// many Pods of the node use them.
//
// # Order
//
// A device with Attach is first named in node.status.volumesInUse, then awaited in node.status.volumesAttached. Then
// comes Stage, then SetUp or Map for each Pod, then TearDown or Unmap for each, then Unstage, and last the name
// leaves volumesInUse. The caller never runs two of these calls for one device at once, whichever Pods they are for.
//
// # Crashes and errors
//
// Stage and Unstage are idempotent, and their errors are final or Uncertain as those of SetUp and TearDown. Before
// Stage does anything that Unstage would have to undo, it writes a file by which Staged finds the device.
type Attachable interface {
	Plugin
	// Device returns the device of the volume. A device without a name needs neither Stage nor attachment.
	Device(ctx context.Context, spec Spec) (Device, error)
	// Stage makes the device usable on this node. It is called before each SetUp of a new process, and otherwise
	// only before the first.
	Stage(ctx context.Context, req StageRequest) error
	// Unstage undoes Stage. A device that is not staged is fine.
	Unstage(ctx context.Context, deviceName string) error
	// Staged lists the devices that Unstage has to be called for eventually, from what is on disk.
	Staged() ([]Device, error)
	// DeviceOf returns the name of the device behind a directory that SetUp or Map made, from what is on disk. It is
	// empty if there is none or the directory is missing. The error of a damaged record wraps ErrDeviceUnknown: the volume can be
	// unmounted nevertheless.
	DeviceOf(dir string) (string, error)
}

// ErrDeviceUnknown says that the record of a volume's device on disk is damaged.
var ErrDeviceUnknown = errors.New("the record of its device is damaged")

// Device describes a volume as a device of the node.
type Device struct {
	// Name is the volume's unique name in node.status.volumesInUse and volumesAttached.
	Name string
	// Attach means that the volume has to be attached before Stage.
	Attach bool
	// Driver is the driver that the plugin calls, empty if it calls none. Block means that containers get the volume as
	// a block device. Both are for metrics.
	Driver string
	Block  bool
	// SELinuxLabel is the label that a staged device is mounted with, empty if it is mounted without one.
	SELinuxLabel string
}

// AttachErrorReader is an Attachable that can read why a volume is not attached yet.
type AttachErrorReader interface {
	Attachable
	// AttachError returns why the last attempt to attach the volume to this node failed, nil if none did as far as is
	// known. It is an AttachLimitExceeded if the node cannot have one more volume of a driver that wants Pods to be
	// rejected then.
	AttachError(ctx context.Context, spec Spec) error
}

// Expander is a Plugin whose volumes can be expanded while they are in use.
type Expander interface {
	Plugin
	// Expand expands the volume, which is set up, to the size of its PersistentVolume. It returns false if nodes have
	// nothing to do for that. An error may be marked with Uncertain, or with Infeasible.
	Expand(ctx context.Context, req ExpandRequest) (bool, error)
}

// ExpandRequest is a request to expand a volume.
type ExpandRequest struct {
	Spec Spec
	// Dir is that of the Request, Path that of the Mount.
	Dir, Path string
}

// StatsProvider is a Plugin that knows the usage of its volumes better than statfs(2).
type StatsProvider interface {
	Plugin
	// Stats returns nil if statfs should be used.
	Stats(ctx context.Context, spec Spec, path string) (*Stats, error)
}

// Stats is the size and usage of a volume. Unknown values are 0.
type Stats struct {
	// Capacity, Available and Used are in bytes.
	Capacity, Available, Used int64
	// Inodes, InodesFree and InodesUsed count inodes.
	Inodes, InodesFree, InodesUsed int64
}

// HealthReporter is a Plugin that knows the health of its volumes.
type HealthReporter interface {
	Plugin
	// ReportsHealth reports whether Health says anything of the volume.
	ReportsHealth(spec Spec) bool
	// Health returns what is wrong with a volume that is set up on the path of its Mount, nothing if nothing is.
	Health(ctx context.Context, spec Spec, path string) ([]volumehealth.Problem, error)
}

// SELinuxMounter is an Attachable that can mount volumes with an SELinux label, which all their files then have.
type SELinuxMounter interface {
	Attachable
	// SupportsSELinuxMount reports whether it can do so with this volume. Only then a request has a label.
	SupportsSELinuxMount(ctx context.Context, spec Spec) (bool, error)
}

// BlockMapper is a Plugin that can hand a volume to a container as a block device instead of a directory. Map returns
// the path of the device; Unmap gets the Dir of its Request, which is POD/volumeDevices/<escaped plugin>/<DirName> and
// which Map makes a symbolic link to the device. The rules of SetUp and TearDown hold. In between the plugin pins the
// device (see volume/blockpin), so that the device number that a container has is not reused for another device.
type BlockMapper interface {
	Plugin
	Map(ctx context.Context, req Request) (Mount, error)
	Unmap(ctx context.Context, dir string) error
}

// Spec is a volume as a Pod requests it. Exactly one of Volume and PV decides which plugin is meant: PV if it is
// set, else Volume's own source. The objects are shared and must not be modified.
type Spec struct {
	// Name is the volume's name in the Pod: spec.volumes[].name.
	Name string
	// Volume is the entry of spec.volumes. It is always set in the request of a Pod.
	Volume *corev1.Volume
	// PVC and PV are set when the entry is a claim or a generic ephemeral volume; they are bound to each other.
	PVC *corev1.PersistentVolumeClaim
	PV  *corev1.PersistentVolume
}

// DirName is the name of the volume's directory under its plugin's directory: the PersistentVolume's name, or the
// volume's name in the Pod if it has none.
func (s Spec) DirName() string {
	if s.PV != nil {
		return s.PV.Name
	}
	return s.Name
}

// QualifiedPluginName returns the name of the volume's plugin as metrics show it: for CSI volumes with the driver's
// name.
func (s Spec) QualifiedPluginName(plugin string) string {
	return QualifiedPluginName(plugin, s.Driver())
}

// Driver returns the name of the volume's CSI driver, empty if it has none.
func (s Spec) Driver() string {
	switch {
	case s.PV != nil && s.PV.Spec.CSI != nil:
		return s.PV.Spec.CSI.Driver
	case s.PV == nil && s.Volume != nil && s.Volume.CSI != nil:
		return s.Volume.CSI.Driver
	}
	return ""
}

// MountOptions returns the options that the PersistentVolume wants a mount of it to have. Its annotation, which is older than the field,
// has precedence; a trailing comma there, or an empty one, adds no option.
func (s Spec) MountOptions() []string {
	if s.PV == nil {
		return nil
	}
	options := slices.Clone(s.PV.Spec.MountOptions)
	if annotation, ok := s.PV.Annotations[corev1.MountOptionAnnotation]; ok {
		options = strings.Split(annotation, ",")
	}
	return slices.DeleteFunc(options, func(option string) bool { return option == "" })
}

// QualifiedPluginName returns the name of a plugin as metrics show it: with the driver's name, if it is not empty.
func QualifiedPluginName(plugin, driver string) string {
	if driver == "" {
		return plugin
	}
	return plugin + ":" + driver
}

// Request is a request for one volume of one Pod.
type Request struct {
	// Pod is the latest version of the Pod. Its labels, annotations and status may change between calls, its UID does
	// not.
	Pod *corev1.Pod
	// Spec is the volume.
	Spec Spec
	// Dir is the absolute path POD/volumes/<escaped plugin name>/<DirName>. Its parent may be missing. A plugin
	// that needs no directory (hostPath) leaves it alone.
	Dir string
	// ReadOnly means that nothing may write to the volume through this Pod.
	ReadOnly bool
	// FSGroup, if not nil, is the group that is to own the volume; FSGroupChangePolicy says when.
	FSGroup             *int64
	FSGroupChangePolicy corev1.PodFSGroupChangePolicy
	// SELinuxLabel, if not empty, is the label that the volume is mounted with (see SELinuxMounter).
	SELinuxLabel string
	// OnOwnershipProgress, if not nil, is called periodically with the number of files done while changing the group
	// of the volume to FSGroup takes long. It must not be called after SetUp has returned.
	OnOwnershipProgress func(files int64)
	// OnOwnershipRefused, if not nil, is called before SetUp returns if files of the volume could not be given to FSGroup,
	// with their number and the first reason.
	OnOwnershipRefused func(files int, reason error)
	// OnOwnershipKept, if not nil, is called before SetUp returns if the volume keeps its group because other Pods of this node use it.
	OnOwnershipKept func(gid int64)
	// OnOwnershipChanged, if not nil, is called when the change of the group has finished or failed, with its duration.
	OnOwnershipChanged func(took time.Duration, err error)
}

// StageRequest is a request to make a device usable on the node.
type StageRequest struct {
	// DeviceName is the volume's unique name.
	DeviceName string
	Spec       Spec
	// PodNamespace is that of the first Pod that uses the volume, where the Secrets of a Pod's own volume are.
	PodNamespace string
	// DevicePath is the path in node.status.volumesAttached. It may be empty.
	DevicePath string
	// FSGroup is that of the first Pod that uses the volume.
	FSGroup *int64
	// SELinuxLabel, if not empty, is the label that the volume is mounted with. It is the same for all Pods that use it.
	SELinuxLabel string
}

// Mount is a volume that is set up.
type Mount struct {
	// Path is what the container runtime mounts into containers: a directory, a file (hostPath) or a device.
	Path string
	// ReadOnly means that containers must get it read-only, whatever their volumeMounts say.
	ReadOnly bool
	// SELinuxRelabel means that the container runtime may change the SELinux labels of the files to that of the container,
	// if the volume is not mounted with a label.
	SELinuxRelabel bool
}
