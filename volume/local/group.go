package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/globs"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/fsgroup"
)

// applyGroup gives the volume, which is mounted, to the Pod's group, unless other Pods of this node use it: they would lose their access. isNew
// says that this Pod did not have it before. The caller has locked the volume.
func (p *Plugin) applyGroup(ctx context.Context, req volume.Request, isNew bool) error {
	if req.ReadOnly || req.FSGroup == nil {
		return nil
	}
	shared, err := p.isUsedByOthers(req.Dir)
	if err != nil {
		return err
	}
	if !shared {
		return fsgroup.ApplyTo(ctx, req.Dir, req)
	}
	var stat unix.Stat_t
	if err := unix.Stat(req.Dir, &stat); err != nil {
		return &os.PathError{Op: "stat", Path: req.Dir, Err: err}
	}
	if isNew && int64(stat.Gid) != *req.FSGroup && req.OnOwnershipKept != nil {
		req.OnOwnershipKept(int64(stat.Gid))
	}
	return nil
}

// isUsedByOthers reports whether the volume of this directory is mounted for other Pods.
func (p *Plugin) isUsedByOthers(dir string) (bool, error) {
	all, err := filepath.Glob(filepath.Join(globs.Escape(podsDir(dir)), "*", "volumes", volume.EscapeName(Name), globs.Escape(filepath.Base(dir))))
	if err != nil {
		return false, fmt.Errorf("find other pods with the volume: %w", err)
	}
	for _, other := range all {
		if other == dir {
			continue
		}
		mounted, err := p.mounter.IsMountPoint(other)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("find other pods with the volume: %w", err)
		}
		if mounted {
			return true, nil
		}
	}
	return false, nil
}

// podsDir returns ROOT/pods for the directory of a volume, ROOT/pods/UID/volumes/PLUGIN/PV.
func podsDir(dir string) string {
	return filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(dir))))
}
