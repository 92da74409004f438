package isolate

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// newLink claims the addresses of the link. With a user namespace there is none, because only root may connect the machine's network
// with another: the cluster has its own loopback.
func (c Config) newLink() (*link, error) {
	if !c.UserNamespace {
		return c.claimLink()
	}
	return &link{inside: addresses{V4: netip.AddrFrom4([4]byte{127, 0, 0, 1})}}, nil
}

// removeLink removes the link, if there is one.
func (c Config) removeLink(l *link) error {
	if c.UserNamespace {
		return nil
	}
	return l.remove()
}

// UserNamespace returns the attributes of a process that gets all namespaces of a cluster and a user namespace, in which this user is root.
// Other users do not exist there.
func UserNamespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  namespaces | unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
}

// prepareUserNamespace makes the mounts of a cluster with a user namespace: /proc of its PID namespace, and a directory for the run
// directory, which only root may write to on the machine. It brings up loopback and has the test processes listen there.
func (c Config) prepareUserNamespace() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep the cluster's mounts from the machine: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc for the cluster's user namespace: %w", err)
	}
	if err := coverRunDirectories(filepath.Dir(c.RunDir)); err != nil {
		return fmt.Errorf("mount %s for the cluster's user namespace: %w", filepath.Dir(c.RunDir), err)
	}
	if err := configure("lo", nil); err != nil {
		return err
	}
	return c.serveListeners()
}

// coverRunDirectories mounts an empty file system over the directory of all run directories, to which only root may write on the machine.
// Where that does not exist yet, this user may not make it: then its parent is covered, and gets all that it had again.
func coverRunDirectories(dir string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=755")
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	parent := filepath.Dir(dir)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	var paths []string
	for _, entry := range entries {
		if entry.IsDir() {
			paths = append(paths, filepath.Join(parent, entry.Name()))
		}
	}
	trees, err := cloneTrees(paths)
	defer func() {
		for _, fd := range trees {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", parent, "tmpfs", flags, "mode=755"); err != nil {
		return err
	}
	for path, fd := range trees {
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount %s again: %w", path, err)
		}
	}
	return os.Mkdir(dir, 0o755)
}
