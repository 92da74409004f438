// Package loopdev attaches files and devices to the kernel's loop devices. It has no state: it reads the kernel's each
// time, so it works across restarts and concurrently with other programs.
//
// Libraries for loop devices lack what it is for: identifying a device by its disk sequence, opening it so that it cannot
// be reused meanwhile, detaching it only if it is still the same, and listing devices by their files without opening them.
package loopdev

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
	// Major is the major number of all loop devices.
	Major = 7
	// maxAttachAttempts is how often another program may take a free device first.
	maxAttachAttempts = 64
	// deleted is the suffix that the kernel appends to the path of a deleted backing file.
	deleted = " (deleted)"
)

// Devices are the loop devices of this machine. It is safe for concurrent use.
type Devices struct {
	// sys is /sys/block, dev is /dev.
	sys, dev string
}

// New returns Devices.
func New() Devices { return Devices{sys: "/sys/block", dev: "/dev"} }

// Device is a loop device that something is attached to.
type Device struct {
	// Number is its minor number: it is /dev/loopNUMBER.
	Number int
	// Backing is the path of the attached file as this process sees it, without the suffix for deleted files. A path of
	// another mount namespace begins at the root of its mount.
	Backing string
	// Offset is that of Options.
	Offset uint64
	// Sequence identifies the attached file among all that are ever attached to a device of this number. It is 0 before
	// Linux 5.15.
	Sequence uint64
	// Detaching says that it has been detached, but is still open. It disappears when it is closed.
	Detaching bool
}

// List lists the devices in use whose Backing satisfies match. It opens none of them.
func (d Devices) List(match func(backing string) bool) ([]Device, error) {
	names, err := filepath.Glob(filepath.Join(d.sys, "loop*", "loop", "backing_file"))
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	var found []Device
	for _, name := range names {
		path, err := backing(name)
		if err != nil || !match(path) {
			continue // an error: detached meanwhile
		}
		number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(filepath.Dir(name))), "loop"))
		if err != nil {
			return nil, fmt.Errorf("list loop devices: number of %s: %w", name, err)
		}
		device, err := d.readDevice(number)
		if err != nil || !match(device.Backing) {
			continue // detached meanwhile
		}
		found = append(found, device)
	}
	return found, nil
}

// backing reads the path of what is attached out of a backing_file.
func backing(name string) (string, error) {
	path, err := os.ReadFile(name)
	return strings.TrimSuffix(strings.TrimSuffix(string(path), "\n"), deleted), err
}

// readDevice reads the state of a device in use. It reads the sequence first: if another file is attached meanwhile, Detach
// will not detach that one.
func (d Devices) readDevice(number int) (device Device, err error) {
	device.Number = number
	if device.Sequence, err = d.diskSequence(number); err != nil {
		return device, err
	}
	dir := filepath.Join(d.sys, "loop"+strconv.Itoa(number), "loop")
	if device.Backing, err = backing(filepath.Join(dir, "backing_file")); err != nil {
		return device, err
	}
	offset, err := os.ReadFile(filepath.Join(dir, "offset"))
	if err != nil {
		return device, err
	}
	if device.Offset, err = strconv.ParseUint(strings.TrimSpace(string(offset)), 10, 64); err != nil {
		return device, err
	}
	detaching, err := os.ReadFile(filepath.Join(dir, "autoclear"))
	device.Detaching = strings.TrimSpace(string(detaching)) != "0"
	return device, err
}

// diskSequence is the Sequence of what is attached to the device now.
func (d Devices) diskSequence(number int) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(d.sys, "loop"+strconv.Itoa(number), "diskseq"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// Options say how to attach. The zero value gives a device that can be written to and shows all of the file.
type Options struct {
	// ReadOnly refuses writes to the device. The file may be open for reading only.
	ReadOnly bool
	// SectorSize is in bytes; 0 leaves it to the kernel.
	SectorSize uint32
	// Offset is how many bytes of the file the device leaves out at its beginning. If there are no more the device is
	// empty.
	Offset uint64
	// Skip, if not nil, reports whether a free device must not be taken.
	Skip func(number int) (bool, error)
}

// Attach attaches an open file or block device to a free loop device and returns that. The caller may close the file
// then: the kernel holds it until Detach.
func (d Devices) Attach(file *os.File, options Options) (Device, error) {
	mode, flags := os.O_RDWR, uint32(0)
	if options.ReadOnly {
		mode, flags = os.O_RDONLY, unix.LO_FLAGS_READ_ONLY
	}
	control, err := os.OpenFile(filepath.Join(d.dev, "loop-control"), os.O_RDWR, 0)
	if err != nil {
		return Device{}, fmt.Errorf("open loop control (is the kernel's module \"loop\" loaded?): %w", err)
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: options.SectorSize,
		Info: unix.LoopInfo64{Flags: flags, Offset: options.Offset}}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], file.Name())
	next := 0
	for range maxAttachAttempts {
		number, err := freeNumber(control, next)
		if err != nil {
			return Device{}, err
		}
		if options.Skip != nil {
			skip, err := options.Skip(number)
			if err != nil {
				return Device{}, err
			}
			if skip {
				next = number + 1
				continue
			}
		}
		device, err := d.configure(number, mode, &config)
		if err != nil {
			return Device{}, fmt.Errorf("attach %q to %q: %w", file.Name(), d.Path(number), err)
		}
		if device != nil {
			return *device, nil
		}
		if next > 0 {
			next = number + 1
		}
	}
	return Device{}, fmt.Errorf("attach %q: %d free loop devices were in use after all", file.Name(), maxAttachAttempts)
}

// freeNumber returns the number of a device that is free, or that at least the caller has not tried: the first of all,
// or, where next says that it cannot be used, that one.
func freeNumber(control *os.File, next int) (int, error) {
	if next == 0 {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return 0, fmt.Errorf("get free loop device (losetup -a lists those in use): %w", err)
		}
		return number, nil
	}
	err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, next)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("add loop device %d: %w", next, err)
	}
	return next, nil
}

// configure attaches to the device. It returns nil if the device is not free.
func (d Devices) configure(number, mode int, config *unix.LoopConfig) (*Device, error) {
	file, err := d.Open(number, mode)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return nil, nil // attached and detached meanwhile
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	err = unix.IoctlLoopConfigure(int(file.Fd()), config)
	if errors.Is(err, unix.EBUSY) {
		return nil, nil // another program was faster
	}
	if err != nil {
		return nil, err
	}
	device, err := d.readDevice(number)
	if err != nil { // the caller could not detach it
		return nil, errors.Join(err, unix.IoctlSetInt(int(file.Fd()), unix.LOOP_CLR_FD, 0))
	}
	return &device, nil
}

// Path is the path of a device.
func (d Devices) Path(number int) string { return filepath.Join(d.dev, "loop"+strconv.Itoa(number)) }

// Open opens a device. It creates the device's node if udev or devtmpfs has not. It returns ENXIO for a device that is
// being detached.
func (d Devices) Open(number, mode int) (*os.File, error) {
	path := d.Path(number)
	device, err := os.OpenFile(path, mode|unix.O_CLOEXEC, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return device, err
	}
	id := int(unix.Mkdev(Major, uint32(number)))
	if err := unix.Mknod(path, unix.S_IFBLK|0o660, id); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return os.OpenFile(path, mode|unix.O_CLOEXEC, 0)
}

// OpenPinned opens a device for reading. The attached file cannot change until the caller closes the device. It returns
// ENXIO if nothing, or another file, is attached.
func (d Devices) OpenPinned(device Device) (*os.File, error) {
	file, err := d.Open(device.Number, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	sequence, err := d.diskSequence(device.Number)
	if err == nil && sequence != device.Sequence {
		err = &os.PathError{Op: "hold", Path: file.Name(), Err: unix.ENXIO}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Detach detaches the device, immediately or when its last user closes it, and before that its mapping. A device that is free or has
// another file attached is no error and stays unchanged.
func (d Devices) Detach(device Device) error {
	file, err := d.OpenPinned(device)
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("detach %q: %w", d.Path(device.Number), err)
	}
	defer file.Close()
	if err := d.Unmap(device.Number); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(int(file.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %q: %w", file.Name(), err)
	}
	return nil
}

// DetachBelow detaches the devices of all files below a directory, also of deleted ones. It continues after an error and
// returns all of them. The path must have no symbolic links, as the kernel's have none.
func (d Devices) DetachBelow(dir string) error {
	found, err := d.List(func(backing string) bool { return strings.HasPrefix(backing, dir+"/") })
	if err != nil {
		return err
	}
	var errs []error
	for _, device := range found {
		if err := d.Detach(device); err != nil {
			errs = append(errs, fmt.Errorf("detach the disk %s: %w", device.Backing, err))
		}
	}
	return errors.Join(errs...)
}
