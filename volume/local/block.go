package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
)

// Map implements volume.BlockMapper. The volume's path must be a block device. It is pinned (see package blockpin)
// until Unmap, which finds it by the link in the Pod's directory: that is created first and removed last.
func (p *Plugin) Map(ctx context.Context, req volume.Request) (volume.Mount, error) {
	pv := req.Spec.PV
	path := pv.Spec.Local.Path
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return volume.Mount{}, fmt.Errorf("stat device %q of local volume %q: %w", path, pv.Name, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return volume.Mount{}, fmt.Errorf("map local volume %q: its volumeMode is Block but %s is not a block device",
			pv.Name, path)
	}
	if _, err := blockpin.Symlink(path, req.Dir); err != nil {
		return volume.Mount{}, fmt.Errorf("map local volume %q: %w", pv.Name, err)
	}
	if err := p.pinner.Pin(ctx, path, pinPath(req.Dir)); err != nil {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("map local volume %q: %w", pv.Name, err))
	}
	return volume.Mount{Path: path, ReadOnly: req.ReadOnly}, nil
}

// Unmap implements volume.BlockMapper. The device itself is not changed.
func (p *Plugin) Unmap(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := p.pinner.Unpin(ctx, pinPath(dir)); err != nil {
		return fmt.Errorf("unmap local volume %q: %w", filepath.Base(dir), err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unmap local volume %q: %w", filepath.Base(dir), err)
	}
	return nil
}

// pinPath returns the path of the pin, ROOT/plugins/PLUGIN/volumeDevices/PV/UID, for the link in the Pod's directory,
// ROOT/pods/UID/volumeDevices/PLUGIN/PV. Both paths are those of Kubernetes' kubelet.
func pinPath(link string) string {
	pluginDir := filepath.Dir(link)
	base := filepath.Dir(pluginDir)
	podDir := filepath.Dir(base)
	root := filepath.Dir(filepath.Dir(podDir))
	return filepath.Join(root, "plugins", filepath.Base(pluginDir), filepath.Base(base), filepath.Base(link),
		filepath.Base(podDir))
}
