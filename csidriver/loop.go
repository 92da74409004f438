package csidriver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/loopdev"
)

const (
	loopMajor = loopdev.Major
	// sectorSize is that of the devices, whatever the kernel's default.
	sectorSize = 512
)

// loops finds the loop devices of images. It has no state: it reads the kernel's each time.
type loops struct{ devices loopdev.Devices }

// loop is an attached loop device.
type loop struct {
	number   int
	path     string
	sequence uint64 // differs for each image that is attached to this number
	readonly bool
	// mapped is the base name of the node of its mapping, which containers get in its place; empty if it has none.
	mapped string
	// detaching: it has been detached, but is still open, for instance by a copy of a mount in another mount namespace. It
	// works until it is closed.
	detaching bool
}

// device identifies the device, also after its number was reused.
func (l *loop) device() loopdev.Device {
	return loopdev.Device{Number: l.number, Sequence: l.sequence}
}

// find returns the device that the image is attached to, nil if there is none or it is being detached. A device that is mounted
// here is attached, although it may be marked to be detached: a container that has it as raw block device can mark it.
func (l *loops) find(image string) (*loop, error) {
	device, err := l.findAny(image)
	if err != nil || device == nil || !device.detaching {
		return device, err
	}
	filesystem, node, err := device.mounts()
	if err != nil || len(filesystem)+len(node) == 0 {
		return nil, err
	}
	return device, nil
}

// findAny is find that also returns devices that are being detached.
func (l *loops) findAny(image string) (*loop, error) {
	var stat unix.Stat_t
	if err := unix.Stat(image, &stat); err != nil {
		return nil, &os.PathError{Op: "stat", Path: image, Err: err}
	}
	// Only the inode decides, because the path may be that of another mount namespace. The filter avoids opening all devices.
	candidates, err := l.devices.List(func(backing string) bool { return strings.Contains(backing, imageName) })
	if err != nil {
		return nil, err
	}
	for _, candidate := range candidates {
		found, err := l.matchImage(candidate, &stat)
		if err != nil {
			return nil, err
		}
		if found != nil {
			return found, nil
		}
	}
	return nil, nil
}

// matchImage returns the device if its image has the inode of stat.
func (l *loops) matchImage(candidate loopdev.Device, stat *unix.Stat_t) (*loop, error) {
	device, err := l.devices.OpenPinned(candidate)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return nil, nil // being detached, or reused meanwhile
	}
	if err != nil {
		return nil, err
	}
	defer device.Close()
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return nil, nil // detached meanwhile
	}
	if err != nil {
		return nil, fmt.Errorf("read the image of %q: %w", device.Name(), err)
	}
	if info.Device != stat.Dev || info.Inode != stat.Ino {
		return nil, nil
	}
	mapped, err := l.mappedName(candidate.Number)
	if err != nil {
		return nil, err
	}
	return &loop{
		number: candidate.Number, path: device.Name(), sequence: candidate.Sequence, mapped: mapped,
		readonly:  info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
		detaching: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
	}, nil
}

// mappedName returns the base name of the node of the device's mapping, empty if it has none.
func (l *loops) mappedName(number int) (string, error) {
	mapping, err := l.devices.FindMapping(number)
	if err != nil || mapping == nil {
		return "", err
	}
	return filepath.Base(mapping.Path), nil
}

// attach attaches the image to a free device. It must not be attached already.
func (l *loops) attach(image string, readonly bool) (*loop, error) {
	mode := os.O_RDWR
	if readonly {
		mode = os.O_RDONLY
	}
	file, err := os.OpenFile(image, mode, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	device, err := l.devices.Attach(file, loopdev.Options{ReadOnly: readonly, SectorSize: sectorSize, Skip: l.isNodePublished})
	if err != nil {
		return nil, err
	}
	return &loop{
		number: device.Number, path: l.devices.Path(device.Number), sequence: device.Sequence, readonly: readonly,
	}, nil
}

// isNodePublished reports whether the node of a free device is still published: it belongs to an earlier Pod, which must
// not reach another image.
func (l *loops) isNodePublished(number int) (bool, error) {
	_, published, err := (&loop{number: number}).mounts()
	return len(published) > 0, err
}

// cancelDetach clears a device's autoclear flag: its image must not get a second device while a filesystem that is still
// mounted writes through the first. It returns false if the device is gone.
func (l *loops) cancelDetach(device *loop) (bool, error) {
	file, err := l.devices.OpenPinned(device.device())
	if errors.Is(err, unix.ENXIO) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	info, err := unix.IoctlLoopGetStatus64(int(file.Fd()))
	if err == nil {
		info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopSetStatus64(int(file.Fd()), info)
	}
	if errors.Is(err, unix.ENXIO) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("keep %q attached: %w", device.path, err)
	}
	return true, nil
}

// detach detaches the device, immediately or when its last user closes it.
func (l *loops) detach(device *loop) error {
	return l.devices.Detach(device.device())
}

// refuseDiscards makes the device refuse to free blocks of its image, until it is detached.
func (l *loop) refuseDiscards() error {
	return os.WriteFile(fmt.Sprintf("/sys/block/loop%d/queue/discard_max_bytes", l.number), []byte("0"), 0o644)
}

// resize sets the device's size, and that of its mapping, to that of its image.
func (l *loops) resize(device *loop) error {
	file, err := l.devices.OpenPinned(device.device())
	if err != nil {
		return fmt.Errorf("resize %q: %w", device.path, err)
	}
	defer file.Close()
	if err := unix.IoctlSetInt(int(file.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("resize %q: %w", device.path, err)
	}
	if device.mapped == "" {
		return nil
	}
	_, err = l.devices.Map(device.device(), device.readonly)
	return err
}

// containerNode returns the path of the node that a container gets for the device: that of its mapping, which passes none of the ioctls on
// by which a container could change the device; without a device mapper, that of the device itself.
func (l *loops) containerNode(device *loop) (string, error) {
	mapping, err := l.devices.Map(device.device(), device.readonly)
	if errors.Is(err, loopdev.ErrNoMapper) {
		return device.path, nil
	}
	if err != nil {
		return "", err
	}
	device.mapped = filepath.Base(mapping.Path)
	return mapping.Path, nil
}
