package csidriver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	loopMajor = 7
	// sectorSize is that of the devices, whatever the kernel's default.
	sectorSize = 512
	// attachTries is how often a free device may be lost to somebody else who attaches at the same time.
	attachTries = 64
)

// loops works with the kernel's loop devices. All it knows it asks the kernel each time.
type loops struct {
	// sys is /sys/block, dev is /dev.
	sys, dev string
}

// loop is an attached loop device.
type loop struct {
	number   int
	path     string
	readonly bool
	// detaching: it has been detached, but somebody still has it open, such as another mount namespace that got a
	// copy of a mount. It serves on until that one lets go.
	detaching bool
}

// find returns the device that the image is attached to, nil if there is none or it is being detached.
func (l *loops) find(image string) (*loop, error) {
	device, err := l.findAny(image)
	if err != nil || device == nil || device.detaching {
		return nil, err
	}
	return device, nil
}

// findAny is find for devices that are being detached, too.
func (l *loops) findAny(image string) (*loop, error) {
	var stat unix.Stat_t
	if err := unix.Stat(image, &stat); err != nil {
		return nil, &os.PathError{Op: "stat", Path: image, Err: err}
	}
	names, err := filepath.Glob(filepath.Join(l.sys, "loop*", "loop", "backing_file"))
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	for _, name := range names {
		backing, err := os.ReadFile(name)
		// The path may be seen from another mount namespace: only the inode decides. This spares opening devices.
		if err != nil || !strings.Contains(string(backing), imageName) {
			continue // detached meanwhile, or not ours
		}
		number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(filepath.Dir(name))), "loop"))
		if err != nil {
			continue
		}
		found, err := l.check(number, &stat)
		if err != nil {
			return nil, err
		}
		if found != nil {
			return found, nil
		}
	}
	return nil, nil
}

// check returns the device if its image is that of stat.
func (l *loops) check(number int, stat *unix.Stat_t) (*loop, error) {
	device, err := l.openDevice(number, os.O_RDONLY)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return nil, nil // being detached right now
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
		return nil, fmt.Errorf("ask %q for its image: %w", device.Name(), err)
	}
	if info.Device != stat.Dev || info.Inode != stat.Ino {
		return nil, nil
	}
	return &loop{
		number: number, path: device.Name(), readonly: info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
		detaching: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
	}, nil
}

// attach attaches the image to a free device. The caller has made sure that it is attached to none.
func (l *loops) attach(image string, readonly bool) (*loop, error) {
	mode, flags := os.O_RDWR, uint32(0)
	if readonly {
		mode, flags = os.O_RDONLY, unix.LO_FLAGS_READ_ONLY
	}
	file, err := os.OpenFile(image, mode, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	control, err := os.OpenFile(filepath.Join(l.dev, "loop-control"), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open loop control (is the kernel's module \"loop\" loaded?): %w", err)
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: sectorSize, Info: unix.LoopInfo64{Flags: flags}}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], image)
	next := 0
	for range attachTries {
		number, err := freeNumber(control, next)
		if err != nil {
			return nil, err
		}
		device := &loop{number: number, path: l.devicePath(number), readonly: readonly}
		// A node that is still published belongs to an earlier user, who must not get at this image.
		_, published, err := device.uses()
		if err != nil {
			return nil, err
		}
		if len(published) > 0 {
			next = number + 1
			continue
		}
		done, err := l.configure(number, mode, &config)
		if err != nil {
			return nil, fmt.Errorf("attach %q to %q: %w", image, device.path, err)
		}
		if done {
			return device, nil
		}
		if next > 0 {
			next = number + 1
		}
	}
	return nil, fmt.Errorf("attach %q: %d free loop devices were in use after all", image, attachTries)
}

// freeNumber returns the number of a device that is free, or that at least the caller has not tried: the first of all,
// or, where next says that it cannot be used, that one.
func freeNumber(control *os.File, next int) (int, error) {
	if next == 0 {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return 0, fmt.Errorf("get free loop device: %w", err)
		}
		return number, nil
	}
	err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, next)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("add loop device %d: %w", next, err)
	}
	return next, nil
}

// configure attaches an image to the device. It reports false if the device is not free.
func (l *loops) configure(number, mode int, config *unix.LoopConfig) (bool, error) {
	device, err := l.openDevice(number, mode)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return false, nil // taken and given back since
	}
	if err != nil {
		return false, err
	}
	defer device.Close()
	err = unix.IoctlLoopConfigure(int(device.Fd()), config)
	if errors.Is(err, unix.EBUSY) {
		return false, nil // somebody else was quicker
	}
	return err == nil, err
}

func (l *loops) devicePath(number int) string {
	return filepath.Join(l.dev, "loop"+strconv.Itoa(number))
}

// openDevice opens /dev/loopN, and makes the node if nobody (udev, devtmpfs) has.
func (l *loops) openDevice(number, mode int) (*os.File, error) {
	path := l.devicePath(number)
	device, err := os.OpenFile(path, mode|unix.O_CLOEXEC, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return device, err
	}
	id := int(unix.Mkdev(loopMajor, uint32(number)))
	if err := unix.Mknod(path, unix.S_IFBLK|0o660, id); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return os.OpenFile(path, mode|unix.O_CLOEXEC, 0)
}

// revive takes back that a device is being detached: its image must not get a second device while a filesystem that
// is still mounted somewhere writes through the first. It reports false if the device is gone by now.
func (l *loops) revive(device *loop) (bool, error) {
	file, err := l.openDevice(device.number, os.O_RDONLY)
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

// detach frees the device, at once or when its last user closes it.
func (l *loops) detach(device *loop) error {
	file, err := l.openDevice(device.number, os.O_RDONLY)
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.IoctlSetInt(int(file.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %q: %w", device.path, err)
	}
	return nil
}

// resize has the device take the size that its image has now.
func (l *loops) resize(device *loop) error {
	file, err := l.openDevice(device.number, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.IoctlSetInt(int(file.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("resize %q: %w", device.path, err)
	}
	return nil
}
