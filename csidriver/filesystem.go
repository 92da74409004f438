package csidriver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/atomicfile"
)

const (
	fsExt4 = "ext4"
	fsXFS  = "xfs"
	// fsNone: the image has only zeros.
	fsNone = ""
	// fsUnknown: the image has data, but none of these filesystems.
	fsUnknown = "unknown"
)

// fsPackage is the distribution's package of a filesystem's programs.
var fsPackage = map[string]string{fsExt4: "e2fsprogs", fsXFS: "xfsprogs"}

// checkFSType rejects filesystems that the driver cannot create.
func checkFSType(fsType string) error {
	if _, ok := fsPackage[fsType]; !ok {
		return status.Errorf(codes.InvalidArgument,
			"volume_capability.mount.fs_type: %q is not supported, only %s and %s", fsType, fsExt4, fsXFS)
	}
	return nil
}

// program returns the path of a filesystem's program, or an error that says what to install.
func program(name, fsType string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", status.Errorf(codes.FailedPrecondition,
			"%s is not installed on the node: install the package %s", name, fsPackage[fsType])
	}
	return path, nil
}

// probe returns the filesystem of the image.
func probe(image string) (string, error) {
	file, err := os.Open(image)
	if err != nil {
		return "", err
	}
	defer file.Close()
	head := make([]byte, 2048)
	if _, err := file.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read superblock: %w", err)
	}
	switch {
	case bytes.HasPrefix(head, []byte("XFSB")):
		return fsXFS, nil
	case isSuperblock(head[extSuper:]):
		return fsExt4, nil
	}
	blank, err := isBlank(file)
	if err != nil || blank {
		return fsNone, err
	}
	return fsUnknown, nil
}

// isBlank reports whether the file has only zeros.
func isBlank(file *os.File) (bool, error) {
	buffer := make([]byte, 1<<20)
	zeros := make([]byte, 1<<20)
	for offset := int64(0); ; {
		start, err := unix.Seek(int(file.Fd()), offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("find data in image: %w", err)
		}
		n, err := file.ReadAt(buffer, start)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read image: %w", err)
		}
		if !bytes.Equal(buffer[:n], zeros[:n]) {
			return false, nil
		}
		if n == 0 {
			return true, nil
		}
		offset = start + int64(n)
	}
}

// ensureFilesystem creates a filesystem if the volume is new, and returns the volume's filesystem. An empty fsType accepts
// any existing one.
func (d *Driver) ensureFilesystem(ctx context.Context, id string, device *loop, fsType string) (string, error) {
	marker := filepath.Join(d.store.dir(id), formattingName)
	_, err := os.Lstat(marker)
	interrupted := err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("look for %q: %w", marker, err)
	}
	have := fsNone
	if !interrupted {
		if have, err = probe(d.store.image(id)); err != nil {
			return "", err
		}
	}
	switch {
	case have == fsUnknown:
		return "", status.Errorf(codes.FailedPrecondition,
			"volume %q has data that is neither %s nor %s; it was used as raw block volume", id, fsExt4, fsXFS)
	case have != fsNone && fsType != "" && have != fsType:
		return "", status.Errorf(codes.FailedPrecondition,
			"volume_capability.mount.fs_type: volume %q has %s, not %s", id, have, fsType)
	case have != fsNone:
		return have, nil
	}
	if fsType == "" {
		fsType = DefaultFSType
	}
	if device.readonly {
		return "", status.Errorf(codes.FailedPrecondition,
			"volume %q has no filesystem yet, and none can be created while it is published read-only", id)
	}
	if err := atomicfile.Write(marker, nil, 0o600); err != nil {
		return "", fmt.Errorf("mark volume %q: %w", id, err)
	}
	if err := d.makeFilesystem(ctx, device, fsType); err != nil {
		return "", err
	}
	if err := d.fillHoles(id); err != nil {
		return "", err
	}
	if err := os.Remove(marker); err != nil {
		return "", fmt.Errorf("unmark volume %q: %w", id, err)
	}
	return fsType, atomicfile.SyncDir(filepath.Dir(marker))
}

func (d *Driver) makeFilesystem(ctx context.Context, device *loop, fsType string) error {
	mkfs, err := program("mkfs."+fsType, fsType)
	if err != nil {
		return err
	}
	args := []string{"-q", "-F", "-m", "0"}
	if fsType == fsXFS {
		args = []string{"-q", "-f"}
	}
	d.logger.Info("creating filesystem", "device", device.path, "type", fsType)
	return runProgram(ctx, mkfs, append(args, device.path)...)
}

// fillHoles allocates the blocks that mkfs has freed in the image of a volume that is preallocated.
func (d *Driver) fillHoles(id string) error {
	it, err := d.store.get(id)
	if err != nil || !it.Preallocate {
		return err
	}
	image, err := os.OpenFile(d.store.image(id), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.store.preallocate(image, it.size, false), image.Close())
}

// runProgram runs a program and returns an error unless it exits with 0.
func runProgram(ctx context.Context, path string, args ...string) error {
	output, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("run %s %q: %w: %s", filepath.Base(path), args, err, bytes.TrimSpace(output))
	}
	return nil
}

// errDeviceBusy says that a filesystem cannot be checked because it is mounted, possibly in another mount namespace.
var errDeviceBusy = errors.New("the device is in use")

// preen runs e2fsck to replay the journal and repair what it can without asking. It skips a filesystem that is in use:
// the kernel has mounted it, so it is consistent.
func (d *Driver) preen(ctx context.Context, device *loop) error {
	err := d.runE2fsck(ctx, device, "-p")
	if errors.Is(err, errDeviceBusy) {
		return nil
	}
	return err
}

// runE2fsck runs e2fsck, and returns errDeviceBusy if the filesystem is in use. A torn superblock is repaired from its copy.
func (d *Driver) runE2fsck(ctx context.Context, device *loop, args ...string) error {
	fsck, err := program("e2fsck", fsExt4)
	if err != nil {
		return err
	}
	// Only opening the device exclusively detects mounts in other mount namespaces.
	exclusive, err := os.OpenFile(device.path, os.O_RDONLY|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return errDeviceBusy
	}
	if err != nil {
		return err
	}
	backup, err := backupSuperblock(exclusive)
	if err := errors.Join(err, exclusive.Close()); err != nil {
		return err
	}
	if backup != nil {
		d.logger.Warn("superblock is torn, its copy is used", "device", device.path)
	}
	var exit *exec.ExitError
	err = runProgram(ctx, fsck, slices.Concat(args, backup, []string{device.path})...)
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil // repaired
	}
	return err
}
