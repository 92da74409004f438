package mounts

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// descriptorDir has the files that this process has open. Another program cannot mount from there.
const descriptorDir = "/proc/self/fd/"

// byPath is a Mounter for paths that may be another program, such as mount(8).
type byPath struct{ inner Mounter }

// ByPath returns a Mounter that uses inner for sources that are paths. A source that is an open file of this process is
// mounted with a system call: inner may be another program, and the file may be one that no path leads to safely.
func ByPath(inner Mounter) Mounter { return byPath{inner} }

// Mount implements Mounter.
func (m byPath) Mount(source, target, fstype string, options []string) error {
	if strings.HasPrefix(source, descriptorDir) {
		return Syscalls{}.Mount(source, target, fstype, options)
	}
	return m.inner.Mount(source, target, fstype, options)
}

// Unmount implements Mounter. The error for a path where nothing is mounted is that of the system call.
func (m byPath) Unmount(target string) error {
	err := m.inner.Unmount(target)
	if err == nil {
		return nil
	}
	if mounted, checkErr := m.inner.IsMountPoint(target); checkErr == nil && !mounted {
		return &os.PathError{Op: "unmount", Path: target, Err: unix.EINVAL}
	}
	return err
}

// IsMountPoint implements Mounter.
func (m byPath) IsMountPoint(path string) (bool, error) { return m.inner.IsMountPoint(path) }
