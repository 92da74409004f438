package mounts

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// HasSecurityLabels reports whether the file system that the path is on keeps a security label for each file.
func HasSecurityLabels(path string) (bool, error) {
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return false, fmt.Errorf("find the mount of %q: %w", path, err)
	}
	var nearest *mountinfo.Info
	for _, info := range infos {
		if nearest == nil || len(info.Mountpoint) >= len(nearest.Mountpoint) { // the last one is on top
			nearest = info
		}
	}
	if nearest == nil {
		return false, fmt.Errorf("find the mount of %q: there is none", path)
	}
	options := strings.Split(nearest.Options+","+nearest.VFSOptions, ",")
	return slices.Contains(options, "seclabel"), nil
}
