package container

import (
	"os"
	"path/filepath"
	"time"
)

// RealOS is the OSInterface of this machine.
type RealOS struct{}

var _ OSInterface = RealOS{}

// MkdirAll is os.MkdirAll.
func (RealOS) MkdirAll(path string, perm os.FileMode) error { return os.MkdirAll(path, perm) }

// Symlink is os.Symlink.
func (RealOS) Symlink(oldname, newname string) error { return os.Symlink(oldname, newname) }

// Stat is os.Stat.
func (RealOS) Stat(path string) (os.FileInfo, error) { return os.Stat(path) }

// Remove is os.Remove.
func (RealOS) Remove(path string) error { return os.Remove(path) }

// RemoveAll is os.RemoveAll.
func (RealOS) RemoveAll(path string) error { return os.RemoveAll(path) }

// ReadDir is os.ReadDir.
func (RealOS) ReadDir(dirname string) ([]os.DirEntry, error) { return os.ReadDir(dirname) }

// Glob is filepath.Glob.
func (RealOS) Glob(pattern string) ([]string, error) { return filepath.Glob(pattern) }

// Hostname is os.Hostname.
func (RealOS) Hostname() (string, error) { return os.Hostname() }

// Chtimes is os.Chtimes.
func (RealOS) Chtimes(path string, atime, mtime time.Time) error {
	return os.Chtimes(path, atime, mtime)
}
