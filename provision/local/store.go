package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// rootMode gives the node's users no access to the volumes; Pods access them through mounts.
	rootMode = 0o700
	// volumeMode lets a Pod of any user write; the kubelet restricts it if the Pod has an fsGroup.
	volumeMode = 0o777
)

// volumeStore is the directory of volumes.
type volumeStore struct {
	root string
	// mu makes the choice and the use of a project ID atomic.
	mu sync.Mutex
}

// createResult is the result of create.
type createResult struct {
	// exists is set if the directory exists, created if this call created it.
	exists, created bool
	// limited is set if a quota enforces the size; otherwise reason is why not.
	limited bool
	reason  error
}

func (t *volumeStore) path(name string) string { return filepath.Join(t.root, name) }

// checkName returns an error for a name that is not one plain path element.
func checkName(name string) error {
	if name == "" || name[0] == '.' || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("volume name %q cannot be the name of a directory", name)
	}
	return nil
}

// openRoot opens the root. It follows symbolic links: the path is the administrator's.
func (t *volumeStore) openRoot() (*os.File, error) {
	fd, err := unix.Open(t.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: t.root, Err: err}
	}
	return os.NewFile(uintptr(fd), t.root), nil
}

// openDir opens a directory in dir, but no symbolic link and nothing that is mounted there.
func openDir(dir *os.File, name string) (*os.File, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name)), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			// EAGAIN: a rename or mount elsewhere raced with the lookup; try again.
		default:
			return nil, &os.PathError{Op: "open", Path: filepath.Join(dir.Name(), name), Err: err}
		}
	}
}

// create creates the directory of a volume, or completes it if it exists.
func (t *volumeStore) create(name string, size int64) (createResult, error) {
	var m createResult
	if err := checkName(name); err != nil {
		return m, err
	}
	if err := os.MkdirAll(t.root, rootMode); err != nil {
		return m, fmt.Errorf("create directory of volumes: %w", err)
	}
	root, err := t.openRoot()
	if err != nil {
		return m, fmt.Errorf("create volume %q: %w", name, err)
	}
	defer root.Close()
	err = unix.Mkdirat(int(root.Fd()), name, rootMode)
	m.created = err == nil
	m.exists = m.created
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return m, fmt.Errorf("create volume %q: %w", name, &os.PathError{Op: "mkdir", Path: t.path(name), Err: err})
	}
	dir, err := openDir(root, name)
	if err != nil {
		return m, fmt.Errorf("create volume %q: %w", name, err)
	}
	m.exists = true
	defer dir.Close()
	if m.reason, err = t.limit(dir, name, size); err != nil {
		return m, fmt.Errorf("limit size of volume %q: %w", name, err)
	}
	m.limited = m.reason == nil
	if !m.created {
		// The kubelet may have set owner and mode for a Pod already.
		if info, err := dir.Stat(); err == nil && info.Mode().Perm() != rootMode {
			return m, nil
		}
	}
	// The mode is set last and regardless of the umask: a directory without it was left by a crash.
	if err := dir.Chmod(volumeMode); err != nil {
		return m, fmt.Errorf("create volume %q: %w", name, err)
	}
	// Otherwise the disk could lose a volume that is in the API, at a power failure.
	if err := errors.Join(dir.Sync(), root.Sync()); err != nil {
		return m, fmt.Errorf("create volume %q: %w", name, err)
	}
	return m, nil
}

// remove removes the directory of a volume and all that is in it. It stops if interrupted returns an error.
func (t *volumeStore) remove(interrupted func() error, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	root, err := t.openRoot()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove volume %q: %w", name, err)
	}
	defer root.Close()
	dir, err := openDir(root, name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("remove volume %q: something is mounted on %q; unmount it", name, t.path(name))
	case err != nil:
		return fmt.Errorf("remove volume %q: %w", name, err)
	}
	defer dir.Close()
	if err := checkNotMounted(dir); err != nil {
		return fmt.Errorf("remove volume %q: %w", name, err)
	}
	if err := removeContents(interrupted, dir); err != nil {
		return fmt.Errorf("remove volume %q: %w", name, err)
	}
	// The limit goes before the directory, by which a removal after a crash finds the project. The directory itself keeps the
	// project's ID in use until then. A file system that has lost its quotas since must not keep the volume.
	if project := projectOf(dir); project != 0 && projectsEnforced(dir) == nil {
		if err := setLimit(dir, project, 0); err != nil {
			return fmt.Errorf("remove volume %q: free its quota: %w", name, err)
		}
	}
	if err := unix.Unlinkat(int(root.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove volume %q: %w", name, &os.PathError{Op: "rmdir", Path: t.path(name), Err: err})
	}
	return nil
}

// checkNotMounted returns an error if something is mounted below the directory, or if the directory is mounted somewhere
// else: then a Pod still uses it.
func checkNotMounted(dir *os.File) error {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	// own is the mount that the directory is on: the last one with the longest mount point above it.
	var own *mountinfo.Info
	for _, m := range mounts {
		if m.Mountpoint != path && isWithin(m.Mountpoint, path) {
			return fmt.Errorf("something is mounted on %q; unmount it", m.Mountpoint)
		}
		if isWithin(path, m.Mountpoint) && (own == nil || len(m.Mountpoint) >= len(own.Mountpoint)) {
			own = m
		}
	}
	if own == nil {
		return nil
	}
	inside := filepath.Join(own.Root, strings.TrimPrefix(path, own.Mountpoint))
	for _, m := range mounts {
		if m.ID != own.ID && m.Major == own.Major && m.Minor == own.Minor && isWithin(m.Root, inside) {
			return fmt.Errorf("the directory is still mounted on %q", m.Mountpoint)
		}
	}
	return nil
}

// isWithin returns whether path is dir or below it.
func isWithin(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
