package kuberuntime

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/envvars"
	"github.com/berth-dev/berth/kubelet/network"
)

// Volume is a mounted volume of the Pod.
type Volume struct {
	// HostPath is the path of its content on the node. Empty for an image volume.
	HostPath string
	// ReadOnly makes it read-only for every container.
	ReadOnly bool
	// Image is the image to mount; nil for every other kind of volume.
	Image *runtimeapi.ImageSpec
	// SELinuxRelabel says that the runtime labels the content for the container.
	SELinuxRelabel bool
}

// SubPathRequest describes a path inside a volume that is to be prepared for a mount.
type SubPathRequest struct {
	Pod       *corev1.Pod
	Container string
	// Index is the index of the mount in the container's volumeMounts, Volume the volume's name.
	Index  int
	Volume string
	// VolumePath is the volume's path on the node, and SubPath the path inside it: relative, without "..".
	VolumePath, SubPath string
}

// MountInputs is what a container's mounts are built from.
type MountInputs struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	// Volumes are the Pod's mounted volumes by name.
	Volumes map[string]Volume
	// Env is the container's environment, for subPathExpr.
	Env []envvars.Var
	// SubPath prepares a path inside a volume, such that no link in the volume leads out of it, and returns the path to
	// mount. It may be nil if no mount has a subPath.
	SubPath func(context.Context, SubPathRequest) (string, error)
	// HostsFile and TerminationLog are files on the node for the container's /etc/hosts and termination message.
	// Empty ones are not mounted.
	HostsFile, TerminationLog string
	// SELinux says that the machine uses SELinux: the runtime labels these files for the container.
	SELinux bool
}

// Mounts builds the container's mounts: its volumes in the order of the spec, then /etc/hosts unless a volume is mounted
// there, then the file for the termination message. An error is a *container.ConfigError.
func (b *Builder) Mounts(ctx context.Context, in MountInputs) ([]*runtimeapi.Mount, error) {
	var mounts []*runtimeapi.Mount
	hosts := in.HostsFile
	for i := range in.Container.VolumeMounts {
		m, err := b.volumeMount(ctx, &in, i)
		if err != nil {
			return nil, container.NewConfigError(err)
		}
		m.SelinuxRelabel = m.SelinuxRelabel && isFirstMount(in.Container.VolumeMounts, i) // once for each volume
		if filepath.Clean(m.ContainerPath) == network.HostsPath {
			hosts = ""
		}
		mounts = append(mounts, m)
	}
	if hosts != "" {
		mounts = append(mounts, &runtimeapi.Mount{
			HostPath: hosts, ContainerPath: network.HostsPath, SelinuxRelabel: in.SELinux,
		})
	}
	if path := in.Container.TerminationMessagePath; path != "" && in.TerminationLog != "" {
		mounts = append(mounts, &runtimeapi.Mount{
			HostPath: in.TerminationLog, ContainerPath: absolutePath(path), SelinuxRelabel: in.SELinux,
		})
	}
	return mounts, nil
}

// isFirstMount reports whether no earlier mount is of the same volume.
func isFirstMount(mounts []corev1.VolumeMount, index int) bool {
	return !slices.ContainsFunc(mounts[:index], func(m corev1.VolumeMount) bool { return m.Name == mounts[index].Name })
}

func (b *Builder) volumeMount(ctx context.Context, in *MountInputs, index int) (*runtimeapi.Mount, error) {
	spec := &in.Container.VolumeMounts[index]
	volume, ok := in.Volumes[spec.Name]
	if !ok || volume.HostPath == "" && volume.Image == nil {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", spec.Name, in.Container.Name)
	}
	m := &runtimeapi.Mount{
		HostPath:       volume.HostPath,
		ContainerPath:  absolutePath(spec.MountPath),
		Readonly:       spec.ReadOnly || volume.ReadOnly,
		SelinuxRelabel: volume.SELinuxRelabel,
	}
	subPath, err := expandSubPath(spec, in.Env)
	if err != nil {
		return nil, err
	}
	switch {
	case volume.Image != nil:
		m.HostPath, m.Image, m.ImageSubPath = "", volume.Image, subPath
		m.Readonly = true
	case subPath != "":
		if in.SubPath == nil {
			return nil, fmt.Errorf("prepare subPath for volumeMount %q of container %q: not supported here",
				spec.Name, in.Container.Name)
		}
		m.HostPath, err = in.SubPath(ctx, SubPathRequest{
			Pod: in.Pod, Container: in.Container.Name, Index: index, Volume: spec.Name,
			VolumePath: volume.HostPath, SubPath: subPath,
		})
		if err != nil {
			return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w",
				spec.Name, in.Container.Name, err)
		}
	}
	if m.Propagation, err = propagation(spec.MountPropagation); err != nil {
		return nil, err
	}
	m.RecursiveReadOnly, err = b.recursiveReadOnly(spec)
	return m, err
}

// expandSubPath returns the mount's subPath, or its subPathExpr with the variables expanded.
func expandSubPath(spec *corev1.VolumeMount, env []envvars.Var) (string, error) {
	path := spec.SubPath
	if spec.SubPathExpr != "" {
		values := map[string]string{}
		for _, v := range env {
			values[v.Name] = v.Value
		}
		missing := ""
		path = envvars.Expand(spec.SubPathExpr, func(name string) (string, bool) {
			value, ok := values[name]
			if !ok && missing == "" {
				missing = name
			}
			return value, ok
		})
		if missing != "" {
			return "", fmt.Errorf("expand subPathExpr %q of volumeMount %q: missing value for %q",
				spec.SubPathExpr, spec.Name, missing)
		}
	}
	if filepath.IsAbs(path) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", path)
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", path)
	}
	return path, nil
}

func propagation(mode *corev1.MountPropagationMode) (runtimeapi.MountPropagation, error) {
	if mode == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *mode {
	case corev1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case corev1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("read volumeMounts.mountPropagation %q: not a propagation mode", *mode)
}

// recursiveReadOnly reports whether the mount is read-only with all mounts below it.
func (b *Builder) recursiveReadOnly(spec *corev1.VolumeMount) (bool, error) {
	mode := spec.RecursiveReadOnly
	if mode == nil || *mode == corev1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !spec.ReadOnly {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", spec.Name)
	}
	if spec.MountPropagation != nil && *spec.MountPropagation != corev1.MountPropagationNone {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q",
			spec.Name, *spec.MountPropagation)
	}
	switch *mode {
	case corev1.RecursiveReadOnlyIfPossible:
		return b.config.RecursiveReadOnly, nil
	case corev1.RecursiveReadOnlyEnabled:
		if !b.config.RecursiveReadOnly {
			return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime",
				spec.Name)
		}
		return true, nil
	}
	return false, fmt.Errorf("read volumeMounts.recursiveReadOnly %q: not a mode", *mode)
}

// absolutePath puts a relative path below the root.
func absolutePath(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return "/" + path
}
