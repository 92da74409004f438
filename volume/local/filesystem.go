package local

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/keylock"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/disk"
	"github.com/berth-dev/berth/volume/mounts"
)

// diskMounter mounts the file systems of block devices. It is safe for concurrent use.
type diskMounter struct {
	mounter mounts.Mounter
	// busy has, by its number, each device whose file system is checked, created or mounted.
	busy keylock.Locks[uint64]
}

// mount mounts the file system of a device on req.Dir, and creates one if the device is blank. Several Pods of the node may use it:
// the kernel gives all of them the same file system.
func (d *diskMounter) mount(ctx context.Context, req volume.Request, device string, number uint64) error {
	unlock, err := d.busy.Lock(ctx, number)
	if err != nil {
		return fmt.Errorf("wait for another mount of the device: %w", err)
	}
	defer unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	matches := func(have *unix.Stat_t) bool { return have.Dev == number }
	return mounts.MountOnce(ctx, d.mounter, req.Dir, req.ReadOnly, matches, func() error { return d.mountLocked(req, device) })
}

func (d *diskMounter) mountLocked(req volume.Request, device string) error {
	pv := req.Spec.PV
	if err := disk.Mount(d.mounter, device, req.Dir, ptr.Deref(pv.Spec.Local.FSType, ""), req.Spec.MountOptions()); err != nil {
		return err
	}
	if !req.ReadOnly {
		return nil
	}
	// This mount alone: other Pods may write.
	return mounts.Restrict(req.Dir, unix.MS_RDONLY)
}
