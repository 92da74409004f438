// Package hostpath is the volume plugin for hostPath, in a Pod or a PersistentVolume: a path of the node.
package hostpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

// Name is the plugin's name.
const Name = "kubernetes.io/host-path"

// Plugin is the volume plugin. It keeps nothing below the Pod's directory.
type Plugin struct{ mounter mounts.Mounter }

var _ volume.Plugin = (*Plugin)(nil)

// New returns the plugin.
func New(mounter mounts.Mounter) *Plugin { return &Plugin{mounter: mounter} }

// Name implements volume.Plugin.
func (p *Plugin) Name() string { return Name }

// CanSupport implements volume.Plugin.
func (p *Plugin) CanSupport(spec volume.Spec) bool { return source(spec) != nil }

func source(spec volume.Spec) *corev1.HostPathVolumeSource {
	switch {
	case spec.PV != nil:
		return spec.PV.Spec.HostPath
	case spec.Volume != nil:
		return spec.Volume.HostPath
	}
	return nil
}

// SetUp implements volume.Plugin. It checks the path against the volume's type and creates a missing path if the type
// says so. The group of a host path is never changed.
func (p *Plugin) SetUp(_ context.Context, req volume.Request) (volume.Mount, error) {
	source := source(req.Spec)
	if slices.Contains(strings.Split(source.Path, "/"), "..") {
		return volume.Mount{}, fmt.Errorf("invalid HostPath %q: must not contain '..'", source.Path)
	}
	if options := req.Spec.MountOptions(); len(options) > 0 {
		return volume.Mount{}, fmt.Errorf("mount options are not supported for this volume type: the path of persistent volume %q is not mounted "+
			"with %q: remove its mountOptions, or make it a local volume", req.Spec.PV.Name, strings.Join(options, ","))
	}
	kind := corev1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	if err := checkType(source.Path, kind); err != nil {
		return volume.Mount{}, err
	}
	return volume.Mount{Path: source.Path, ReadOnly: req.ReadOnly}, nil
}

// hostPathKinds are the types that are only checked: the mode of the path, and its name in messages.
var hostPathKinds = map[corev1.HostPathType]struct {
	mode os.FileMode // of os.ModeType
	name string
}{
	corev1.HostPathDirectory: {os.ModeDir, "directory"},
	corev1.HostPathFile:      {0, "file"},
	corev1.HostPathSocket:    {os.ModeSocket, "socket file"},
	corev1.HostPathCharDev:   {os.ModeDevice | os.ModeCharDevice, "character device"},
	corev1.HostPathBlockDev:  {os.ModeDevice, "block device"},
}

func checkType(path string, kind corev1.HostPathType) error {
	switch kind {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if err := createDir(path); err != nil {
			return err
		}
		kind = corev1.HostPathDirectory
	case corev1.HostPathFileOrCreate:
		if err := createFile(path); err != nil {
			return err
		}
		kind = corev1.HostPathFile
	}
	want, ok := hostPathKinds[kind]
	if !ok {
		return fmt.Errorf("hostPath type check failed: %q is an invalid volume type", kind)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Type() != want.mode {
		return timeline.WithReason(fmt.Errorf("hostPath type check failed: %s is not a %s", path, want.name), "HostPathType",
			fmt.Sprintf("make %s a %s on this node, or change hostPath.type", path, want.name))
	}
	return nil
}

func createDir(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("create hostPath directory: %w", err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return fmt.Errorf("create hostPath directory: %w", err)
	}
	return nil
}

// createFile creates an empty file unless it exists. Its directory must exist. Of a link that leads to nothing, it creates what the link
// leads to.
func createFile(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("create hostPath file: %w", err)
	}
	if err := errors.Join(file.Chmod(0o644), file.Close()); err != nil {
		return fmt.Errorf("create hostPath file: %w", err)
	}
	return nil
}

// TearDown implements volume.Plugin. SetUp creates nothing below the Pod's directory: TearDown only removes an empty
// directory that a user has created there.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	return mounts.UnmountAndRemoveDir(ctx, p.mounter, dir)
}
