// Package nfs is the volume plugin for NFS shares, in a Pod or a PersistentVolume.
package nfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

const (
	// Name is the plugin's name.
	Name = "kubernetes.io/nfs"
	// Helper is the program that finds the server and speaks with it before the kernel mounts.
	Helper = "mount.nfs"
	// mountTimeout bounds one call of the helper: by itself it asks a server that does not answer for minutes.
	mountTimeout = 2 * time.Minute
)

// Deps is what the plugin needs.
type Deps struct {
	// Mounter unmounts.
	Mounter mounts.Mounter
	// Helper is the path of the program to call. Empty: the one of this name that is in PATH.
	Helper string
}

// Plugin is the volume plugin. It has no state.
type Plugin struct{ deps Deps }

var _ volume.Plugin = (*Plugin)(nil)

// New makes the plugin.
func New(deps Deps) *Plugin {
	if deps.Helper == "" {
		deps.Helper = Helper
	}
	return &Plugin{deps: deps}
}

// Name implements volume.Plugin.
func (p *Plugin) Name() string { return Name }

// CanSupport implements volume.Plugin.
func (p *Plugin) CanSupport(spec volume.Spec) bool { return source(spec) != nil }

func source(spec volume.Spec) *corev1.NFSVolumeSource {
	switch {
	case spec.PV != nil:
		return spec.PV.Spec.NFS
	case spec.Volume != nil:
		return spec.Volume.NFS
	}
	return nil
}

// SetUp implements volume.Plugin. The group of a share is never changed: it is not this node's alone.
func (p *Plugin) SetUp(ctx context.Context, req volume.Request) (volume.Mount, error) {
	nfs := source(req.Spec)
	if err := validate(nfs); err != nil {
		return volume.Mount{}, fmt.Errorf("set up nfs volume %q: %w", req.Spec.DirName(), err)
	}
	readOnly := req.ReadOnly || nfs.ReadOnly
	mount := volume.Mount{Path: req.Dir, ReadOnly: readOnly}
	mounted, err := p.deps.Mounter.IsMountPoint(req.Dir)
	if err == nil && mounted {
		return mount, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return volume.Mount{}, fmt.Errorf("set up nfs volume %q: %w", req.Spec.DirName(), err)
	}
	helper, err := exec.LookPath(p.deps.Helper)
	if err != nil {
		return volume.Mount{}, fmt.Errorf("set up nfs volume %q: %s is not installed on the node: install the package "+
			"nfs-common (Debian) or nfs-utils", req.Spec.DirName(), filepath.Base(p.deps.Helper))
	}
	if err := os.MkdirAll(req.Dir, 0o750); err != nil {
		return volume.Mount{}, fmt.Errorf("make directory of nfs volume %q: %w", req.Spec.DirName(), err)
	}
	if err := runHelper(ctx, helper, arguments(nfs, req, readOnly)); err != nil {
		err = fmt.Errorf("mount nfs volume %q from %s:%s: %w", req.Spec.DirName(), nfs.Server, nfs.Path, err)
		return volume.Mount{}, errors.Join(err, mounts.UnmountAndRemoveDir(context.WithoutCancel(ctx), p.deps.Mounter, req.Dir))
	}
	return mount, nil
}

// validate refuses what the helper would take for something else.
func validate(nfs *corev1.NFSVolumeSource) error {
	switch {
	case nfs.Server == "" || strings.HasPrefix(nfs.Server, "-") || strings.ContainsAny(nfs.Server, "/ \x00"):
		return fmt.Errorf("nfs.server %q is no name or address of a server", nfs.Server)
	case !filepath.IsAbs(nfs.Path) || strings.Contains(nfs.Path, "\x00"):
		return fmt.Errorf("nfs.path %q is no absolute path", nfs.Path)
	}
	return nil
}

func arguments(nfs *corev1.NFSVolumeSource, req volume.Request, readOnly bool) []string {
	server := nfs.Server
	if strings.Contains(server, ":") && !strings.HasPrefix(server, "[") {
		server = "[" + server + "]" // an IPv6 address
	}
	var options []string
	if req.Spec.PV != nil {
		options = append(options, req.Spec.PV.Spec.MountOptions...)
	}
	if readOnly {
		options = append(options, "ro")
	}
	arguments := []string{server + ":" + nfs.Path, req.Dir}
	if len(options) > 0 {
		arguments = append(arguments, "-o", strings.Join(options, ","))
	}
	return arguments
}

func runHelper(ctx context.Context, helper string, arguments []string) error {
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, helper, arguments...).CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not end in time, see whether the server answers: %w", filepath.Base(helper), ctx.Err())
	}
	return fmt.Errorf("%s: %w: %s", filepath.Base(helper), err, bytes.TrimSpace(out))
}

// TearDown implements volume.Plugin. What is on the share stays.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	return mounts.UnmountAndRemoveDir(ctx, p.deps.Mounter, dir)
}
