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
	// rootMode keeps the node's users out of the volumes; Pods come in by their mounts.
	rootMode = 0o700
	// volumeMode lets a Pod of any user write; the kubelet narrows it if the Pod has an fsGroup.
	volumeMode = 0o777
)

// volumeStore is the directory of volumes.
type volumeStore struct {
	root string
	// mu makes the choice of a project ID and its use one step.
	mu sync.Mutex
}

// createResult says what make did.
type createResult struct {
	// exists is set once the directory is there, created if this call made it.
	exists, created bool
	// limited is set if a quota enforces the size; otherwise reason says why not.
	limited bool
	reason  error
}

func (t *volumeStore) path(name string) string { return filepath.Join(t.root, name) }

// checkName refuses names that are not one plain path element.
func checkName(name string) error {
	if name == "" || name[0] == '.' || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("volume name %q cannot be the name of a directory", name)
	}
	return nil
}

// openRoot opens the root. The path is the administrator's, so symbolic links in it are followed.
func (t *volumeStore) openRoot() (*os.File, error) {
	fd, err := unix.Open(t.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: t.root, Err: err}
	}
	return os.NewFile(uintptr(fd), t.root), nil
}

// openDir opens a directory in dir, itself: not through a symbolic link and not what is mounted on it.
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
			// EAGAIN: a rename or mount elsewhere raced with the lookup; it is over by the next try.
		default:
			return nil, &os.PathError{Op: "open", Path: filepath.Join(dir.Name(), name), Err: err}
		}
	}
}

// create makes the directory of a volume, or completes it if it is there already.
func (t *volumeStore) create(name string, size int64) (createResult, error) {
	var m createResult
	if err := checkName(name); err != nil {
		return m, err
	}
	if err := os.MkdirAll(t.root, rootMode); err != nil {
		return m, fmt.Errorf("make directory of volumes: %w", err)
	}
	root, err := t.openRoot()
	if err != nil {
		return m, fmt.Errorf("make volume %q: %w", name, err)
	}
	defer root.Close()
	err = unix.Mkdirat(int(root.Fd()), name, rootMode)
	m.created = err == nil
	m.exists = m.created
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return m, fmt.Errorf("make volume %q: %w", name, &os.PathError{Op: "mkdir", Path: t.path(name), Err: err})
	}
	dir, err := openDir(root, name)
	if err != nil {
		return m, fmt.Errorf("make volume %q: %w", name, err)
	}
	m.exists = true
	defer dir.Close()
	if m.reason, err = t.limit(dir, name, size); err != nil {
		return m, fmt.Errorf("limit size of volume %q: %w", name, err)
	}
	m.limited = m.reason == nil
	if !m.created {
		// A kubelet may have set owner and mode for a Pod already.
		if info, err := dir.Stat(); err == nil && info.Mode().Perm() != rootMode {
			return m, nil
		}
	}
	// The mode comes last and past the umask: it also tells a finished directory from one that a crash left.
	if err := dir.Chmod(volumeMode); err != nil {
		return m, fmt.Errorf("make volume %q: %w", name, err)
	}
	// After a power cut the API would know a volume that the disk does not.
	if err := errors.Join(dir.Sync(), root.Sync()); err != nil {
		return m, fmt.Errorf("make volume %q: %w", name, err)
	}
	return m, nil
}

// remove removes the directory of a volume and all that is in it. cut is asked now and then whether to stop.
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
	project := projectOf(dir)
	if err := removeContents(interrupted, dir); err != nil {
		return fmt.Errorf("remove volume %q: %w", name, err)
	}
	if err := unix.Unlinkat(int(root.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove volume %q: %w", name, &os.PathError{Op: "rmdir", Path: t.path(name), Err: err})
	}
	if project != 0 {
		if err := setLimit(root, project, 0); err != nil {
			return fmt.Errorf("remove volume %q: free its quota: %w", name, err)
		}
	}
	return nil
}

// checkNotMounted returns an error if something is mounted below the directory, or if the directory is mounted
// somewhere else: then a Pod still has it.
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

// isWithin returns whether path is dir or in it.
func isWithin(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
