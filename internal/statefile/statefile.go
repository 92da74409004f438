// Package statefile reads small state files without trust in what is at their path, and sets damaged ones aside: the file
// stays under a name that says so, so that nothing is lost and its owner can start again without it.
package statefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/atomicfile"
)

// ErrDamaged says that the path has something else than a state file: a directory, a symbolic link, or too much.
var ErrDamaged = errors.New("not a state file")

// Read returns the content of the regular file at path, of at most limit bytes. It follows no symbolic link at path and
// does not block on a FIFO. The error wraps fs.ErrNotExist if nothing is at path, and ErrDamaged if it has another type or
// is larger.
func Read(path string, limit int64) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) { // a symbolic link, a socket
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %q is not a regular file (%s)", ErrDamaged, path, info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: %q has more than %d bytes", ErrDamaged, path, limit)
	}
	return data, nil
}

// IsPassing reports whether a file could not be read for a reason that is not the file's and ends by itself: the process or the machine
// has no descriptors or no memory left. Whoever sets a file aside or makes it anew must not do that because of such an error.
func IsPassing(err error) bool {
	for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR, unix.EAGAIN} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// SetAside renames what is at path, whatever it is, and logs that once with the cause and with what follows from it. It
// returns the new path; empty if the rename failed, which it logs, too. A path at which nothing is any more is fine.
func SetAside(logger *slog.Logger, path string, cause error, consequence string) string {
	aside, err := atomicfile.SetAside(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case aside == "":
		logger.Error("state file is damaged and cannot be set aside", "file", path, "error", cause, "reason", err,
			"consequence", consequence)
		return ""
	}
	logger.Error("set aside a damaged state file", "file", path, "aside", aside, "error", cause, "consequence", consequence,
		"remedy", "restore the file from a backup and restart, or delete the one set aside")
	return aside
}

// SetAsideUnlessFile sets aside what is at path, as SetAside does, if that is no regular file. It is for a file that is written without
// being read first.
func SetAsideUnlessFile(logger *slog.Logger, path, consequence string) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		SetAside(logger, path, fmt.Errorf("%w (%s)", ErrDamaged, info.Mode().Type()), consequence)
	}
}

// IsAside reports whether a file of this name was set aside.
func IsAside(name string) bool {
	_, ok := atomicfile.AsideOf(name)
	return ok
}

// Asides returns the paths of what was set aside of the file at path.
func Asides(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		if name, ok := atomicfile.AsideOf(entry.Name()); ok && name == filepath.Base(path) {
			found = append(found, filepath.Join(filepath.Dir(path), entry.Name()))
		}
	}
	return found, nil
}

// Find returns what was set aside below root. It stays on root's file system and does not enter directories for which
// skip returns true. What cannot be read it leaves out.
func Find(root string, skip func(path string) bool) []string {
	var device uint64
	var found []string
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // unreadable
		}
		if IsAside(entry.Name()) {
			found = append(found, path)
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.IsDir() {
			return nil
		}
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			return fs.SkipDir
		}
		if path == root {
			device = stat.Dev
		}
		if stat.Dev != device || path != root && skip != nil && skip(path) {
			return fs.SkipDir
		}
		return nil
	})
	return found
}
