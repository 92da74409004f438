package atomicwriter

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/volume/mounts"
)

const (
	dataLink    = "..data"
	newDataLink = "..data_tmp"

	maxPathLength = 4096
	maxNameLength = 255
)

// File is one file to write.
type File struct {
	Data []byte
	// Mode is the permission bits.
	Mode os.FileMode
	// UID, if not nil, is to own the file; otherwise it is the process's own user.
	UID *int64
}

// Options are the owner and the name of a generation.
type Options struct {
	// GID, if not nil, is the group of all files and directories; directories get the set-group-ID bit, and the group
	// may read all files.
	GID *int64
	// Now names the generation.
	Now time.Time
}

// Write replaces the content of dir, which must exist, by the files, given by their paths relative to dir. It reports
// whether it wrote anything: the same files with the same modes and owners are not written again. If it fails, readers
// see the old files. It may be called again after a crash at any point. It is not safe for concurrent use on one
// directory.
func Write(dir string, files map[string]File, options Options) (changed bool, err error) {
	clean, err := checkPaths(files)
	if err != nil {
		return false, err
	}
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("read link to current files: %w", err)
	}
	if current != "" && isUnchanged(filepath.Join(dir, current), clean, options) {
		return false, cleanup(dir, current, clean)
	}
	next, err := writeGeneration(dir, clean, options)
	if err != nil {
		return false, err
	}
	if err := switchTo(dir, next); err != nil {
		return false, errors.Join(err, mounts.RemoveTree(filepath.Join(dir, next)))
	}
	return true, cleanup(dir, next, clean)
}

// checkPaths rejects paths that would leave the directory or conflict with the writer's own names.
func checkPaths(files map[string]File) (map[string]File, error) {
	clean := make(map[string]File, len(files))
	for _, path := range slices.Sorted(maps.Keys(files)) { // of two paths of one file the same counts each time
		if err := checkPath(path); err != nil {
			return nil, err
		}
		clean[filepath.Clean(path)] = files[path]
	}
	for path := range clean {
		for parent := filepath.Dir(path); parent != "."; parent = filepath.Dir(parent) {
			if _, ok := clean[parent]; ok {
				return nil, fmt.Errorf("write file %q: %q is a file, it cannot be a directory too", path, parent)
			}
		}
	}
	return clean, nil
}

func checkPath(path string) error {
	switch {
	case path == "":
		return errors.New("invalid path: must not be empty")
	case filepath.IsAbs(path):
		return fmt.Errorf("invalid path %q: must be relative", path)
	case len(path) > maxPathLength:
		return fmt.Errorf("invalid path: must be no more than %d characters", maxPathLength)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("invalid path %q: must not contain a zero byte", path)
	case filepath.Clean(path) == ".":
		return fmt.Errorf("invalid path %q: must name a file", path)
	}
	for name := range strings.SplitSeq(path, "/") {
		switch {
		case name == "..":
			return fmt.Errorf("invalid path %q: must not contain \"..\"", path)
		case len(name) > maxNameLength:
			return fmt.Errorf("invalid path: a file name must be no more than %d characters", maxNameLength)
		}
	}
	if strings.HasPrefix(filepath.Clean(path), "..") { // "./..data", too
		return fmt.Errorf("invalid path %q: must not start with \"..\"", path)
	}
	return nil
}

// isUnchanged reports whether the generation in dir consists of exactly these files.
func isUnchanged(dir string, files map[string]File, options Options) bool {
	found := 0
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		file, ok := files[relative]
		if !ok {
			return errDiffers
		}
		found++
		return compare(path, file, options)
	})
	return err == nil && found == len(files)
}

var errDiffers = errors.New("differs")

func compare(path string, file File, options Options) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || info.Mode().Perm() != fileMode(file, options) ||
		info.Size() != int64(len(file.Data)) {
		return errDiffers
	}
	if file.UID != nil && int64(stat.Uid) != *file.UID || options.GID != nil && int64(stat.Gid) != *options.GID {
		return errDiffers
	}
	data, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(data, file.Data) {
		return errDiffers
	}
	return err
}

func fileMode(file File, options Options) os.FileMode {
	if options.GID != nil {
		return file.Mode.Perm() | 0o440
	}
	return file.Mode.Perm()
}

// writeGeneration writes the files into a new directory below dir and returns its name.
func writeGeneration(dir string, files map[string]File, options Options) (string, error) {
	next, err := os.MkdirTemp(dir, options.Now.UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return "", fmt.Errorf("create directory for files: %w", err)
	}
	fill := func() error {
		if err := setDirMode(next, options); err != nil {
			return err
		}
		for path, file := range files {
			if err := makeParents(next, path, options); err != nil {
				return err
			}
			if err := writeFile(filepath.Join(next, path), file, options); err != nil {
				return err
			}
		}
		return nil
	}
	if err := fill(); err != nil {
		return "", errors.Join(err, mounts.RemoveTree(next))
	}
	return filepath.Base(next), nil
}

func makeParents(root, path string, options Options) error {
	dir := root
	parts := strings.Split(path, "/")
	for _, part := range parts[:len(parts)-1] {
		dir = filepath.Join(dir, part)
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("create directory for %q: %w", path, err)
		}
		if err := setDirMode(dir, options); err != nil {
			return err
		}
	}
	return nil
}

// setDirMode sets the mode and group of a directory, independently of the process's umask.
func setDirMode(dir string, options Options) error {
	mode := os.FileMode(0o755)
	if options.GID != nil {
		if err := os.Lchown(dir, -1, int(*options.GID)); err != nil {
			return fmt.Errorf("set group: %w", err)
		}
		mode |= os.ModeSetgid
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return nil
}

func writeFile(path string, file File, options Options) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	uid, gid := -1, -1
	if file.UID != nil {
		uid = int(*file.UID)
	}
	if options.GID != nil {
		gid = int(*options.GID)
	}
	_, err = out.Write(file.Data)
	if err == nil && (uid >= 0 || gid >= 0) {
		err = out.Chown(uid, gid)
	}
	if err == nil {
		err = out.Chmod(fileMode(file, options))
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

// switchTo makes the generation of this name the current one.
func switchTo(dir, next string) error {
	temporary := filepath.Join(dir, newDataLink)
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old link: %w", err)
	}
	if err := os.Symlink(next, temporary); err != nil {
		return fmt.Errorf("link new files: %w", err)
	}
	if err := os.Rename(temporary, filepath.Join(dir, dataLink)); err != nil {
		return fmt.Errorf("switch to new files: %w", err)
	}
	return nil
}

// cleanup creates the links that the files need, and removes dangling links and all other generations.
func cleanup(dir, current string, files map[string]File) error {
	wanted := make(map[string]bool, len(files))
	for path := range files {
		first, _, _ := strings.Cut(path, "/")
		wanted[first] = true
	}
	var errs []error
	for name := range wanted {
		errs = append(errs, link(dir, name))
	}
	entries, err := os.ReadDir(dir)
	errs = append(errs, err)
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case name == dataLink || name == current || wanted[name]:
		case strings.HasPrefix(name, ".."):
			errs = append(errs, mounts.RemoveTree(filepath.Join(dir, name)))
		case entry.Type()&os.ModeSymlink != 0:
			// The writer did not create anything else.
			if target, err := os.Readlink(filepath.Join(dir, name)); err == nil &&
				target == filepath.Join(dataLink, name) {
				errs = append(errs, os.Remove(filepath.Join(dir, name)))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up old files: %w", err)
	}
	return nil
}

// link creates DIR/name as a link to that name in the current generation.
func link(dir, name string) error {
	path, target := filepath.Join(dir, name), filepath.Join(dataLink, name)
	if have, err := os.Readlink(path); err == nil && have == target {
		return nil
	}
	return os.Symlink(target, path)
}
