package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/volume"
)

// Map implements volume.BlockMapper. The volume's path must be a block device.
func (p *Plugin) Map(_ context.Context, req volume.Request) (volume.Mount, error) {
	pv := req.Spec.PV
	if err := checkNode(req); err != nil {
		return volume.Mount{}, err
	}
	path := pv.Spec.Local.Path
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return volume.Mount{}, fmt.Errorf("stat device %q of local volume %q: %w", path, pv.Name, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return volume.Mount{}, fmt.Errorf("map local volume %q: its volumeMode is Block but %s is no block device",
			pv.Name, path)
	}
	if have, err := os.Readlink(req.Dir); err == nil && have == path {
		return volume.Mount{Path: path, ReadOnly: req.ReadOnly}, nil
	}
	if err := p.link(path, req.Dir); err != nil {
		return volume.Mount{}, fmt.Errorf("map local volume %q: %w", pv.Name, err)
	}
	return volume.Mount{Path: path, ReadOnly: req.ReadOnly}, nil
}

func (p *Plugin) link(path, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(path, dir)
}

// Unmap implements volume.BlockMapper. The device itself is left alone.
func (p *Plugin) Unmap(_ context.Context, dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unmap local volume %q: %w", filepath.Base(dir), err)
	}
	return nil
}
