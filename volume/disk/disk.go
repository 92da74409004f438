// Package disk mounts the file systems of block devices, and creates one on a device that is blank.
package disk

import (
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/berth-dev/berth/volume/mounts"
)

// DefaultFSType is the file system of a volume that names none.
const DefaultFSType = "ext4"

// Mount mounts the file system of a block device on dir, which exists. A blank device gets one of the type fsType, which is DefaultFSType if
// it is empty, unless the options have "ro". A device with a file system of another type is rejected, and never formatted. A device that is
// mounted already is neither checked nor formatted. The caller must not run two calls for one device at once.
func Mount(mounter mounts.Mounter, device, dir, fsType string, options []string) error {
	if fsType == "" {
		fsType = DefaultFSType
	}
	var stat unix.Stat_t
	if err := unix.Stat(device, &stat); err != nil {
		return fmt.Errorf("stat device %s: %w", device, err)
	}
	used, err := isMounted(stat.Rdev)
	if err != nil {
		return err
	}
	if used {
		err = mounter.Mount(device, dir, fsType, options)
	} else {
		tool := mount.SafeFormatAndMount{Interface: mount.New(""), Exec: exec.New()}
		err = tool.FormatAndMount(device, dir, fsType, options)
	}
	if err != nil {
		return fmt.Errorf("mount the %s of device %s (check that the package with mkfs.%s is installed and that the device has no "+
			"other file system): %w", fsType, device, fsType, err)
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
