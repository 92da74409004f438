package freeze

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/loopdev"
)

// flush writes out what the kernel has cached of the cluster's disks, so that their images have it. Their filesystems are mounted in the
// mount namespaces of its processes.
func (t Target) flush() error {
	devices := loopdev.New()
	disks, err := devices.List(func(backing string) bool { return strings.HasPrefix(backing, t.Disks+"/") })
	if err != nil {
		return fmt.Errorf("list the cluster's disks: %w", err)
	}
	if len(disks) == 0 {
		return nil
	}
	wanted := map[string]bool{}
	for _, disk := range disks {
		wanted[devices.Path(disk.Number)] = true
	}
	components, err := t.components()
	if err != nil {
		return err
	}
	var errs []error
	for _, one := range slices.Backward(components) {
		errs = append(errs, flushMounts(one.pid, wanted))
	}
	for _, disk := range disks { // what was written to the device itself, and the filesystems' own blocks
		file, err := devices.Open(disk.Number, os.O_RDONLY)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, unix.Fsync(int(file.Fd())), file.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("flush the cluster's disks: %w", err)
	}
	return nil
}

// flushMounts flushes the filesystems of the devices that are mounted where the process sees them, each once.
func flushMounts(pid int, devices map[string]bool) error {
	mounts, err := mountinfo.PidMountInfo(pid)
	if err != nil {
		return nil //nolint:nilerr // the process has ended, or is a zombie
	}
	seen := map[string]bool{}
	var errs []error
	for _, mount := range mounts {
		if !devices[mount.Source] || seen[mount.Source] {
			continue
		}
		seen[mount.Source] = true
		dir, err := os.Open(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), mount.Mountpoint))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, unix.Syncfs(int(dir.Fd())), dir.Close())
	}
	return errors.Join(errs...)
}
