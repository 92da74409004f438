package kuberuntime

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/kubelet/container"
)

// terminationLogs is the directory of all containers' termination messages, below the Pod's.
const terminationLogs = "containers"

// CreateTerminationLog creates an empty file below the Pod's directory for the termination message of a container
// instance, and returns its path. Every user may write to it. An existing file is emptied.
func CreateTerminationLog(podDir, containerName string, attempt uint32) (string, error) {
	dir := TerminationLogDir(podDir, containerName)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("make directory for the termination message of container %q: %w", containerName, err)
	}
	path := filepath.Join(dir, strconv.FormatUint(uint64(attempt), 10))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return "", fmt.Errorf("make file for the termination message of container %q: %w", containerName, err)
	}
	if err := errors.Join(file.Chmod(0o666), file.Close()); err != nil { // whatever the umask
		return "", fmt.Errorf("make file for the termination message of container %q: %w", containerName, err)
	}
	return path, nil
}

// TerminationLogDir returns the directory of the termination messages of a container's instances.
func TerminationLogDir(podDir, containerName string) string {
	return filepath.Join(podDir, terminationLogs, containerName)
}

// CutTerminationLog keeps the last bytes of an ended container's termination message, at most as many as given. It leaves a file
// alone that CreateTerminationLog has not made, such as a volume's at the same path. A container may write any number of bytes.
func CutTerminationLog(podsDir string, c *container.ContainerStatus, keep int64) error {
	path := terminationLog(podsDir, c)
	if path == "" {
		return nil
	}
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // nothing depends on it: a longer file is cut again
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() <= keep {
		return err
	}
	end := make([]byte, keep)
	if _, err := io.ReadFull(io.NewSectionReader(file, info.Size()-keep, keep), end); err != nil {
		return err
	}
	if _, err := file.WriteAt(end, 0); err != nil { // the end of the file stays what it is, whenever this is interrupted
		return err
	}
	return file.Truncate(keep)
}

// RemoveTerminationLog removes the termination message of a removed container, but not a file that CreateTerminationLog has not made.
func RemoveTerminationLog(podsDir string, c *container.ContainerStatus) error {
	path := terminationLog(podsDir, c)
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove termination message of container %q: %w", c.Name, err)
	}
	return nil
}

// terminationLog returns the path of the file that CreateTerminationLog has made for the container, empty if the container has mounted
// another one in its place, or none.
func terminationLog(podsDir string, c *container.ContainerStatus) string {
	for _, m := range c.Mounts {
		containers := filepath.Dir(filepath.Dir(m.HostPath))
		if filepath.Base(containers) == terminationLogs && filepath.Dir(filepath.Dir(containers)) == filepath.Clean(podsDir) &&
			filepath.Base(filepath.Dir(m.HostPath)) == c.Name {
			return m.HostPath
		}
	}
	return ""
}
