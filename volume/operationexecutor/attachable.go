package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume"
)

// ErrNotAttachable is the error about a volume that needs no attachment, or for which there is no plugin.
var ErrNotAttachable = errors.New("volume is not attachable")

// Verdict is what a plugin finds when it verifies whether a volume is attached.
type Verdict int

const (
	// VerdictUncertain means that the volume may be attached, or is on its way to or from the node.
	VerdictUncertain Verdict = iota
	// VerdictAttached means that the volume is attached.
	VerdictAttached
	// VerdictDetached means that the volume is certainly not attached. A failed verification does not mean that.
	VerdictDetached
)

// String returns the verdict as logs show it.
func (v Verdict) String() string {
	switch v {
	case VerdictAttached:
		return "attached"
	case VerdictDetached:
		return "detached"
	default:
		return "uncertain"
	}
}

// AttachablePlugin attaches one kind of volume to nodes.
//
// Attach and Detach are idempotent: attaching what is attached and detaching what is not both succeed. They are
// never called twice at once for one exclusive volume, nor for one pair of a shared volume and a node. After an
// error the volume may be attached or not. They return soon after ctx ends, and have a timeout of their own.
type AttachablePlugin interface {
	// Name is the plugin's qualified name of two parts, such as "kubernetes.io/csi".
	Name() string
	// CanAttach reports whether the plugin is the one for the volume and the volume needs to be attached.
	CanAttach(spec *volume.Spec) (bool, error)
	// VolumeName identifies the volume among those of the plugin. Together with Name it is the unique name.
	VolumeName(spec *volume.Spec) (string, error)
	// Attach returns when the volume is attached. The device path may be empty. A
	// *DanglingAttachError means that the volume is attached to another node.
	Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (devicePath string, err error)
	// Detach returns when the volume is detached. It gets the result of VolumeName, because the volume's objects may no
	// longer exist.
	Detach(ctx context.Context, volumeName string, node types.NodeName) error
	// Verify checks whether the volumes are still attached to the node. A volume without an entry in the result was not
	// checked.
	Verify(ctx context.Context, volumes []AttachedVolume, node types.NodeName) (map[corev1.UniqueVolumeName]Verdict, error)
}

// PluginFinder finds the plugin for a volume. Its methods are safe for concurrent use.
type PluginFinder interface {
	// FindAttachablePluginBySpec returns an error that wraps ErrNotAttachable if the volume needs no attachment.
	FindAttachablePluginBySpec(spec *volume.Spec) (AttachablePlugin, error)
	// FindAttachablePluginByName takes the name of the plugin.
	FindAttachablePluginByName(name string) (AttachablePlugin, error)
}

// Plugins is a PluginFinder over a fixed list; the first plugin that can attach a volume is the one for it.
type Plugins []AttachablePlugin

var _ PluginFinder = Plugins(nil)

// FindAttachablePluginBySpec implements PluginFinder.
func (p Plugins) FindAttachablePluginBySpec(spec *volume.Spec) (AttachablePlugin, error) {
	if spec == nil {
		return nil, fmt.Errorf("find plugin of a volume without spec: %w", ErrNotAttachable)
	}
	for _, plugin := range p {
		ok, err := plugin.CanAttach(spec)
		if err != nil {
			return nil, fmt.Errorf("check with plugin %q whether volume %q can be attached: %w", plugin.Name(), spec.DirName(), err)
		}
		if ok {
			return plugin, nil
		}
	}
	return nil, fmt.Errorf("find plugin of volume %q: %w", spec.DirName(), ErrNotAttachable)
}

// FindAttachablePluginByName implements PluginFinder.
func (p Plugins) FindAttachablePluginByName(name string) (AttachablePlugin, error) {
	for _, plugin := range p {
		if plugin.Name() == name {
			return plugin, nil
		}
	}
	return nil, fmt.Errorf("find plugin %q: no such plugin: %w", name, ErrNotAttachable)
}

// DanglingAttachError means that a volume could not be attached because it is attached to another node.
type DanglingAttachError struct {
	// Node is where the volume is attached, DevicePath its path there (may be empty).
	Node       types.NodeName
	DevicePath string
	// Err is the error of the storage system.
	Err error
}

// Error implements error.
func (e *DanglingAttachError) Error() string {
	return fmt.Sprintf("volume is attached to node %q: %v", e.Node, e.Err)
}

// Unwrap returns the storage system's error.
func (e *DanglingAttachError) Unwrap() error { return e.Err }

// UniqueVolumeName joins a plugin's name and its name for a volume to the unique name that node.status uses.
func UniqueVolumeName(plugin, volumeName string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(plugin + "/" + volumeName)
}

// UniqueVolumeNameFromSpec returns the unique name of a volume, from its plugin.
func UniqueVolumeNameFromSpec(plugins PluginFinder, spec *volume.Spec) (corev1.UniqueVolumeName, error) {
	plugin, err := plugins.FindAttachablePluginBySpec(spec)
	if err != nil {
		return "", err
	}
	name, err := plugin.VolumeName(spec)
	if err != nil {
		return "", fmt.Errorf("name volume %q: %w", spec.DirName(), err)
	}
	return UniqueVolumeName(plugin.Name(), name), nil
}

// SplitUniqueVolumeName is the inverse of UniqueVolumeName. A plugin's name has one slash; what follows the next
// slash is the volume.
func SplitUniqueVolumeName(unique corev1.UniqueVolumeName) (plugin, volumeName string, err error) {
	parts := strings.SplitN(string(unique), "/", 3)
	if len(parts) != 3 {
		return "", "", fmt.Errorf("split volume name %q: want three parts divided by slashes, got %d", unique, len(parts))
	}
	return parts[0] + "/" + parts[1], parts[2], nil
}

// IsMultiAttachAllowed reports whether a volume may be attached to several nodes at once: its PersistentVolume lists
// ReadWriteMany or ReadOnlyMany, or no access mode at all. A volume without a spec was found after a restart and only
// its name is known; it counts as exclusive, which is slower but never wrong.
func IsMultiAttachAllowed(spec *volume.Spec) bool {
	switch {
	case spec == nil:
		return false
	case spec.PV == nil:
		return spec.Volume == nil || spec.Volume.AzureDisk == nil && spec.Volume.Cinder == nil
	case len(spec.PV.Spec.AccessModes) == 0:
		return true
	}
	for _, mode := range spec.PV.Spec.AccessModes {
		if mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany {
			return true
		}
	}
	return false
}
