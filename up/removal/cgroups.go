package removal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroups removes a cgroup and its descendants from every hierarchy. A cgroup can be removed once it has no process, so it
// kills the processes in them, which belong to containers whose shims were killed.
func Cgroups(ctx context.Context, root string) error {
	tops, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", root))
	if err != nil {
		return err
	}
	tops = append(tops, filepath.Join("/sys/fs/cgroup", root))
	var errs []error
	for _, top := range tops {
		var dirs []string
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		errs = append(errs, err)
		for i := len(dirs) - 1; i >= 0; i-- {
			errs = append(errs, killCgroup(ctx, dirs[i]))
			if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dirs[i], err))
			}
		}
	}
	return errors.Join(errs...)
}

// killCgroup kills the processes of one cgroup and waits until they have ended.
func killCgroup(ctx context.Context, cgroup string) error {
	data, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	if err != nil {
		return nil //nolint:nilerr // the cgroup is gone, or removing it reports the error
	}
	var errs []error
	for line := range strings.Lines(string(data)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			errs = append(errs, KillProcess(ctx, pid))
		}
	}
	return errors.Join(errs...)
}
