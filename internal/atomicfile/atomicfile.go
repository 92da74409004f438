// Package atomicfile replaces small files as a whole: a reader, or a crash at any instant, sees the old content or the
// new, never a part.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// tempMark is part of the name of every file that is still being written.
const tempMark = ".berth-tmp-"

// Write replaces the file durably: once it returns, the new content outlives a crash of the machine. The directory must exist. A
// directory at path is set aside, which is logged. A crash during Write may leave a temporary file in the directory, which Clean
// removes.
func Write(path string, data []byte, perm fs.FileMode) error {
	if err := write(path, data, perm, (*os.File).Sync); err != nil {
		return err
	}
	// The file's content is on the disk now; its name is once the directory is.
	if err := SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// WriteVolatile is Write for a file that every start writes again: it does not wait for the disk.
func WriteVolatile(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, func(*os.File) error { return nil })
}

// SyncDir makes the names in a directory durable, after a rename for instance.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Clean removes what interrupted calls of Write left in the directory. Nothing may write there meanwhile.
func Clean(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove partly written files: %w", err)
	}
	for _, entry := range entries {
		if !strings.Contains(entry.Name(), tempMark) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove partly written file: %w", err)
		}
	}
	return nil
}

// asideSuffix is the end of the name of what SetAside renamed; "-2" and so on follow it if there are several.
const asideSuffix = ".damaged"

// maxAside bounds how many copies of one file are kept.
const maxAside = 99

var asidePattern = regexp.MustCompile(regexp.QuoteMeta(asideSuffix) + `(-[0-9]+)?$`)

// SetAside renames what is at path, whatever it is, to a name beside it that says that it is damaged, and returns that. It
// never replaces anything.
func SetAside(path string) (string, error) {
	for n := 1; n <= maxAside; n++ {
		aside := path + asideSuffix
		if n > 1 {
			aside += "-" + strconv.Itoa(n)
		}
		err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, aside, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) { // the file system does not know the flag
			if _, statErr := os.Lstat(aside); statErr == nil {
				continue
			}
			err = os.Rename(path, aside)
		}
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("set aside %s: %w", path, err)
		}
		return aside, SyncDir(filepath.Dir(path))
	}
	return "", fmt.Errorf("set aside %s: there are %d damaged ones already", path, maxAside)
}

// AsideOf returns the name of the file that SetAside renamed to name, false if name is not one that it chooses.
func AsideOf(name string) (original string, ok bool) {
	at := asidePattern.FindStringIndex(name)
	if at == nil || at[0] == 0 {
		return "", false
	}
	return name[:at[0]], true
}

func write(path string, data []byte, perm fs.FileMode, sync func(*os.File) error) error {
	// The leading dot hides it from programs that read every file of a directory; its mode is 0600 at first.
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+tempMark)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Chmod(perm)
	}
	if err == nil {
		err = sync(file)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
		if info, statErr := os.Lstat(path); err != nil && statErr == nil && info.IsDir() {
			err = replaceDirectory(file.Name(), path)
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}

// replaceDirectory renames a file to the path of a directory, which no file can replace: it is set aside.
func replaceDirectory(file, path string) error {
	aside, err := SetAside(path)
	if err != nil {
		return err
	}
	klog.ErrorS(nil, "There was a directory in the place of a file; it is kept beside the new file", "file", path, "aside", aside,
		"remedy", "delete the directory unless something of yours is in it")
	return os.Rename(file, path)
}
