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
	// Helper is the program that contacts the server before the kernel mounts.
	Helper = "mount.nfs"
	// mountTimeout bounds one call of the helper, which by itself retries an unreachable server for minutes.
	mountTimeout = 2 * time.Minute
)

// Deps holds what the plugin uses.
type Deps struct {
	// Mounter unmounts. It defaults to the program umount, which can be killed when the server does not answer.
	Mounter mounts.Mounter
}

// Config holds the settings of the plugin.
type Config struct {
	// Helper is the program that mounts. It defaults to Helper in PATH.
	Helper string
}

// Plugin is the volume plugin. It has no state.
type Plugin struct {
	mounter mounts.Mounter
	helper  string
}

var _ volume.Plugin = (*Plugin)(nil)

// New returns the plugin.
func New(deps Deps, config Config) *Plugin {
	if deps.Mounter == nil || deps.Mounter == (mounts.Syscalls{}) {
		deps.Mounter = processUnmounter{
			Mounter: mounts.Syscalls{}, umount: "umount", stat: "stat",
			unmountTimeout: unmountTimeout, answerTimeout: answerTimeout, killTimeout: killTimeout,
		}
	}
	if config.Helper == "" {
		config.Helper = Helper
	}
	return &Plugin{mounter: deps.Mounter, helper: config.Helper}
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

// SetUp implements volume.Plugin. The group of a share is never changed, because other nodes use the share, too.
func (p *Plugin) SetUp(ctx context.Context, req volume.Request) (volume.Mount, error) {
	nfs := source(req.Spec)
	if err := validate(nfs); err != nil {
		return volume.Mount{}, fmt.Errorf("set up nfs volume %q: %w", req.Spec.DirName(), err)
	}
	readOnly := req.ReadOnly || nfs.ReadOnly
	mount := volume.Mount{Path: req.Dir, ReadOnly: readOnly}
	mounted, err := p.mounter.IsMountPoint(req.Dir)
	if err == nil && mounted {
		return mount, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return volume.Mount{}, fmt.Errorf("set up nfs volume %q: %w", req.Spec.DirName(), err)
	}
	helper, err := exec.LookPath(p.helper)
	if err != nil {
		return volume.Mount{}, fmt.Errorf("set up nfs volume %q: %s is not installed on the node: install the package "+
			"nfs-common (Debian) or nfs-utils", req.Spec.DirName(), filepath.Base(p.helper))
	}
	if err := os.MkdirAll(req.Dir, 0o750); err != nil {
		return volume.Mount{}, fmt.Errorf("create directory of nfs volume %q: %w", req.Spec.DirName(), err)
	}
	if err := runHelper(ctx, helper, arguments(nfs, req, readOnly)); err != nil {
		err = fmt.Errorf("mount nfs volume %q from %s:%s: %w", req.Spec.DirName(), nfs.Server, nfs.Path, err)
		return volume.Mount{}, errors.Join(err, mounts.UnmountAndRemoveDir(context.WithoutCancel(ctx), p.mounter, req.Dir))
	}
	return mount, nil
}

// validate rejects values that the helper would parse as something else.
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
	options := req.Spec.MountOptions()
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
		return fmt.Errorf("%s timed out, check that the server is reachable: %w", filepath.Base(helper), ctx.Err())
	}
	return fmt.Errorf("%s: %w: %s", filepath.Base(helper), err, bytes.TrimSpace(out))
}

// TearDown implements volume.Plugin. The content of the share is kept.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	return mounts.UnmountAndRemoveDir(ctx, p.mounter, dir)
}
