// Package subpath prepares parts of volumes for containers: a directory or file below the volume's root, named by
// volumeMounts[].subPath, which other containers may change at the same time.
//
// The part is opened once, by the kernel, with the rule that the lookup must not leave the volume (openat2 with
// RESOLVE_BENEATH); what was opened is then bind-mounted to a path that only the kubelet can write to. A link, a rename
// or ".." that leads out of the volume causes an error, and later changes have no effect.
package subpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/volume/mounts"
)

// dirName is the directory below the Pod's in which the parts are bind-mounted.
const dirName = "volume-subpaths"

// maxLookups is how often a lookup is repeated while renames elsewhere disturb it.
const maxLookups = 128

// Request is a request for a part of a volume.
type Request struct {
	// PodDir is the Pod's directory: ROOT/pods/UID.
	PodDir string
	// VolumeName is the volume's name in the Pod, VolumePath its path on this node.
	VolumeName, VolumePath string
	// SubPath is the part, relative to the volume, with variables already expanded.
	SubPath string
	// Container and Index name the mount: the container, and the index in its volumeMounts.
	Container string
	Index     int
	// ReadOnly means that the volume itself cannot be written to: a missing directory is then an error.
	ReadOnly bool
}

// SubPaths prepares parts of volumes. It has no state.
type SubPaths struct{ mounter mounts.Mounter }

// New returns a SubPaths.
func New(mounter mounts.Mounter) *SubPaths { return &SubPaths{mounter: mounter} }

// Prepare returns a path on this node that shows the part of the volume, and nothing else, whatever happens to the
// volume. A missing directory is created, with the mode and owner of the volume's root. Prepare may be called again for
// the same mount: it keeps the same part, or replaces it by a new one. Errors do not contain paths of the node.
func (s *SubPaths) Prepare(ctx context.Context, req Request) (string, error) {
	target := filepath.Join(req.PodDir, dirName, req.VolumeName, req.Container, strconv.Itoa(req.Index))
	if err := s.prepare(ctx, req, target); err != nil {
		return "", fmt.Errorf("failed to prepare subPath %q of volume %q for container %q: %w",
			req.SubPath, req.VolumeName, req.Container, hidePath(err))
	}
	return target, nil
}

// hidePath drops the path that an error of the os package names.
func hidePath(err error) error {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return fmt.Errorf("%s: %w", strings.SplitN(pathError.Op, " ", 2)[0], pathError.Err)
	}
	return err
}

func (s *SubPaths) prepare(ctx context.Context, req Request, target string) error {
	if err := validate(req); err != nil {
		return err
	}
	root, err := unix.Open(req.VolumePath, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == unix.ENOTDIR {
		return errors.New("the volume is a file: a subPath needs a directory")
	}
	if err != nil {
		return fmt.Errorf("open volume: %w", err)
	}
	defer func() { _ = unix.Close(root) }()
	part, err := openPart(root, req)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(part) }()
	return s.bind(ctx, part, target)
}

// validate rejects invalid requests.
func validate(req Request) error {
	if filepath.IsAbs(req.SubPath) {
		return errors.New("must be a relative path")
	}
	for _, part := range strings.Split(req.SubPath, "/") {
		if part == ".." {
			return errors.New("must not contain '..'")
		}
	}
	for _, name := range []string{req.VolumeName, req.Container} {
		if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
			return fmt.Errorf("invalid name %q", name)
		}
	}
	return nil
}

// openPart opens the part and creates missing directories.
func openPart(root int, req Request) (int, error) {
	path := filepath.Clean(req.SubPath)
	fd, err := lookup(root, path, 0)
	if !errors.Is(err, unix.ENOENT) {
		return fd, describeError(err)
	}
	if req.ReadOnly {
		return -1, errors.New("it does not exist and the volume is read-only")
	}
	var volume unix.Stat_t
	if err := unix.Fstatat(root, "", &volume, unix.AT_EMPTY_PATH); err != nil {
		return -1, fmt.Errorf("stat volume: %w", err)
	}
	dir, err := lookup(root, ".", unix.O_DIRECTORY)
	if err != nil {
		return -1, describeError(err)
	}
	// Existing links are followed from the root, as long as they stay below it; a missing directory is created in the
	// directory that was opened last.
	parts := strings.Split(path, "/")
	for i := range parts {
		next, err := lookup(root, filepath.Join(parts[:i+1]...), unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			next, err = makeDir(dir, parts[i], &volume)
		}
		_ = unix.Close(dir)
		if err != nil {
			return -1, describeError(err)
		}
		dir = next
	}
	return dir, nil
}

// makeDir creates a directory with the mode and owner of the volume's root, and opens it.
func makeDir(dir int, name string, like *unix.Stat_t) (int, error) {
	mode := like.Mode & 0o7777
	err := unix.Mkdirat(dir, name, 0o700)
	existed := err == unix.EEXIST
	if err != nil && !existed {
		return -1, err
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ELOOP || err == unix.ENOTDIR {
		// A dangling link has this name: it is not followed.
		return -1, unix.EXDEV
	}
	if err != nil || existed {
		return fd, err
	}
	if err := unix.Fchownat(fd, "", int(like.Uid), int(like.Gid), unix.AT_EMPTY_PATH); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	if err := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// lookup opens a path below root. The kernel rejects a path that leads out of root.
func lookup(root int, path string, flags uint64) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := -1, error(unix.EAGAIN)
	for i := 0; i < maxLookups && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); i++ {
		fd, err = unix.Openat2(root, path, how)
	}
	return fd, err
}

// describeError describes the errors of lookup and makeDir for the user.
func describeError(err error) error {
	switch {
	case errors.Is(err, unix.EXDEV):
		return errors.New("it leads out of the volume")
	case errors.Is(err, unix.ELOOP):
		return errors.New("it has too many symbolic links, or one that may not be followed")
	case errors.Is(err, unix.ENOTDIR):
		return errors.New("a part of it is a file, not a directory")
	case errors.Is(err, unix.EAGAIN):
		return errors.New("the volume's directories are being renamed all the time")
	case errors.Is(err, unix.EROFS):
		return errors.New("it does not exist and the volume is read-only")
	}
	return err
}

// bind bind-mounts the opened part on target.
func (s *SubPaths) bind(ctx context.Context, part int, target string) error {
	var want unix.Stat_t
	if err := unix.Fstatat(part, "", &want, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	mounted, err := s.mounter.IsMountPoint(target)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("check for a mount: %w", err)
	}
	if mounted {
		var have unix.Stat_t
		if err := unix.Lstat(target, &have); err == nil && have.Dev == want.Dev && have.Ino == want.Ino {
			return nil
		}
	}
	if err := mounts.UnmountPoint(ctx, s.mounter, target); err != nil {
		return fmt.Errorf("replace mount: %w", hidePath(err))
	}
	if err := makeTarget(target, want.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return fmt.Errorf("create mount point: %w", err)
	}
	// The entry in /proc leads to what was opened, even if it was renamed.
	if err := s.mounter.Mount("/proc/self/fd/"+strconv.Itoa(part), target, "", []string{"bind"}); err != nil {
		return fmt.Errorf("bind: %w", hidePath(err))
	}
	return nil
}

func makeTarget(target string, dir bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if dir {
		return os.Mkdir(target, 0o750)
	}
	return os.WriteFile(target, nil, 0o640)
}

// Cleanup unmounts and removes all parts that were prepared for the Pod. It must run before the Pod's volumes are
// unmounted. A Pod without parts is fine.
func (s *SubPaths) Cleanup(ctx context.Context, podDir string) error {
	dir := filepath.Join(podDir, dirName)
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := mounts.UnmountAll(ctx, s.mounter, dir); err != nil {
		return fmt.Errorf("clean up subPaths: %w", err)
	}
	if err := mounts.RemoveTree(dir); err != nil {
		return fmt.Errorf("clean up subPaths: %w", err)
	}
	return nil
}
