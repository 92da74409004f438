package local

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

// defaultFSType is the file system of a device for which the volume names none.
const defaultFSType = "ext4"

// diskMounter mounts the file systems of block devices. It is safe for concurrent use.
type diskMounter struct {
	mounter mounts.Mounter
	mu      sync.Mutex                  // guards busy
	busy    map[uint64]*deviceOperation // by device number
}

// deviceOperation is held while the file system of one device is checked, created or mounted. It has its users counted by
// diskMounter's mu.
type deviceOperation struct {
	users int
	turn  chan struct{} // holds one element while it is used
}

// lock waits until nothing else is done with the device, or ctx ends: a device that hangs delays no other.
func (d *diskMounter) lock(ctx context.Context, number uint64) (unlock func(), err error) {
	d.mu.Lock()
	if d.busy == nil {
		d.busy = map[uint64]*deviceOperation{}
	}
	one := d.busy[number]
	if one == nil {
		one = &deviceOperation{turn: make(chan struct{}, 1)}
		d.busy[number] = one
	}
	one.users++
	d.mu.Unlock()
	leave := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(d.busy, number)
		}
	}
	select {
	case one.turn <- struct{}{}:
		return func() { <-one.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for another mount of the device: %w", ctx.Err())
	}
}

// mount mounts the file system of a device on req.Dir, and creates one if the device is blank. A device whose file
// system is of another type than the volume's is rejected, and never formatted. Several Pods of the node may use it:
// the kernel gives all of them the same file system.
func (d *diskMounter) mount(ctx context.Context, req volume.Request, device string, number uint64) error {
	unlock, err := d.lock(ctx, number)
	if err != nil {
		return err
	}
	defer unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	matches := func(have *unix.Stat_t) bool { return have.Dev == number }
	return mountOnce(ctx, d.mounter, req, matches, func() error { return d.mountLocked(req, device, number) })
}

func (d *diskMounter) mountLocked(req volume.Request, device string, number uint64) error {
	pv := req.Spec.PV
	fsType := defaultFSType
	if pv.Spec.Local.FSType != nil && *pv.Spec.Local.FSType != "" {
		fsType = *pv.Spec.Local.FSType
	}
	used, err := isMounted(number)
	if err != nil {
		return err
	}
	if used {
		// It must be neither checked nor formatted while it is mounted.
		err = d.mounter.Mount(device, req.Dir, fsType, pv.Spec.MountOptions)
	} else {
		tool := mount.SafeFormatAndMount{Interface: mount.New(""), Exec: exec.New()}
		err = tool.FormatAndMount(device, req.Dir, fsType, pv.Spec.MountOptions)
	}
	if err != nil {
		return fmt.Errorf("mount the %s of device %s (check that the package with mkfs.%s is installed and that the device has no "+
			"other file system): %w", fsType, device, fsType, err)
	}
	if !req.ReadOnly {
		return nil
	}
	// This mount alone: other Pods may write.
	if err := unix.Mount("", req.Dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return &os.PathError{Op: "remount", Path: req.Dir, Err: err}
	}
	return nil
}

// isMounted reports whether a file system of the device is mounted somewhere.
func isMounted(number uint64) (bool, error) {
	major, minor := int(unix.Major(number)), int(unix.Minor(number))
	infos, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
		found := info.Major == major && info.Minor == minor && !strings.HasPrefix(info.FSType, "nfs")
		return !found, found
	})
	return len(infos) > 0, err
}
