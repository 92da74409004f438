// Package blockpin pins the block devices of volumes: while a Pod uses a device, its device number is not reused for
// another one.
//
// A container gets the number of a device, not the device. If the host detaches the device and another one gets its
// number, the container accesses that one without any error. The kernel does not reuse a number while the device is open,
// so a pin keeps it open. This process cannot do that, because it may be killed while the container keeps running: a loop
// device does, with the pinned device as its backing file.
//
// # A pin on disk
//
// The path of a pin, which its owner chooses, is a file that the pinned device is bind-mounted on, and the backing file of
// the loop device. So all of a pin is in the kernel, and a new process finds it by the path alone. There is one pin for
// each Pod and volume. Kubernetes' kubelet has the same pins at the same paths, so each can take over from the other.
//
// Nothing reads or writes through the loop device: it is read-only and begins beyond the end of the device, so it is
// empty. A container that is still allowed to use an earlier loop device of the same number finds nothing there, and a
// scan for file systems finds none twice.
//
// # Order
//
// The owner of a pin writes its own record of the volume before Pin, and removes it after Unpin: a process that is killed
// in between leaves nothing that cannot be found. The device may be detached from the host only after Unpin.
package blockpin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/volume/mounts"
)

// offsetBeyondEnd is the offset at which the loop devices of pins begin: no device is that large. It also distinguishes
// them from other loop devices.
const offsetBeyondEnd = math.MaxInt64 &^ 0xfffff

const (
	// minBusyWait and maxBusyWait bound the intervals in which Unpin retries while a loop device is open: a process
	// that searches for a free one, or udev, which probes a new one, has it open for a moment.
	minBusyWait = time.Millisecond
	maxBusyWait = 256 * time.Millisecond
)

// maxCreateAttempts is how often the directory of a pin may disappear, because another pin in it is removed, while the
// pin's file is created.
const maxCreateAttempts = 100

// Deps holds what a Pinner uses.
type Deps struct {
	// Mounter defaults to system calls.
	Mounter mounts.Mounter
	// Clock defaults to the real clock.
	Clock clock.Clock
}

// Pinner creates and removes pins. It is safe for concurrent use, but calls for one path must not run at the same time.
type Pinner struct {
	mounter mounts.Mounter
	clock   clock.Clock
	loops   loopdev.Devices
}

// New returns a Pinner.
func New(deps Deps) *Pinner {
	if deps.Mounter == nil {
		deps.Mounter = mounts.Syscalls{}
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Pinner{mounter: deps.Mounter, clock: deps.Clock, loops: loopdev.New()}
}

// Pin pins the block device at the path at, and creates its directory. If the device is pinned there already, Pin does
// nothing; another device that is pinned there is unpinned. After an error Unpin must be called.
func (p *Pinner) Pin(ctx context.Context, device, at string) error {
	if err := p.pin(ctx, device, at); err != nil {
		return fmt.Errorf("pin device %q at %q: %w", device, at, err)
	}
	return nil
}

func (p *Pinner) pin(ctx context.Context, device, at string) error {
	// From here on the descriptor is used, so that the path cannot be replaced by another device.
	fd, err := unix.Open(device, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: device, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return &os.PathError{Op: "stat", Path: device, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return errors.New("it is not a block device")
	}
	bound, err := p.isBindMounted(at, stat.Rdev)
	if err != nil {
		return err
	}
	if !bound {
		if err := p.Unpin(ctx, at); err != nil {
			return err
		}
		if err := createMountPoint(at); err != nil {
			return err
		}
		if err := p.mounter.Mount("/proc/self/fd/"+strconv.Itoa(fd), at, "", []string{"bind"}); err != nil {
			return err
		}
	}
	loops, err := p.loopsOf(at)
	if err != nil {
		return err
	}
	for _, loop := range loops {
		if !loop.Detaching {
			return nil
		}
	}
	return p.attachLoop(at, stat.Rdev)
}

// attachLoop attaches a loop device to what is bind-mounted at the path, which must be the device of this number.
func (p *Pinner) attachLoop(at string, number uint64) error {
	file, err := os.OpenFile(at, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return &os.PathError{Op: "stat", Path: at, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK || stat.Rdev != number {
		return errors.New("another device was bind-mounted there meanwhile")
	}
	_, err = p.loops.Attach(file, loopdev.Options{ReadOnly: true, Offset: offsetBeyondEnd})
	return err
}

// isBindMounted reports whether the device of this number is bind-mounted at the path.
func (p *Pinner) isBindMounted(at string, number uint64) (bool, error) {
	if is, err := isDevice(at, number); !is || err != nil {
		return false, err
	}
	return p.mounter.IsMountPoint(at)
}

// isDevice reports whether the path itself is a block device of this number.
func isDevice(path string, number uint64) (bool, error) {
	var stat unix.Stat_t
	err := unix.Lstat(path, &stat)
	if err == unix.ENOENT {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return stat.Mode&unix.S_IFMT == unix.S_IFBLK && stat.Rdev == number, nil
}

// createMountPoint creates an empty file and its directory, unless the file exists.
func createMountPoint(path string) error {
	var err error
	for range maxCreateAttempts {
		if err = os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return err
		}
		var file *os.File
		file, err = os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			return file.Close()
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return err
}

// UnpinOther unpins what is pinned at the path at, unless that is the device.
func (p *Pinner) UnpinOther(ctx context.Context, device, at string) error {
	var pinned, wanted unix.Stat_t
	if err := unix.Lstat(at, &pinned); err == unix.ENOENT {
		return nil
	}
	err := unix.Stat(device, &wanted)
	if err == nil && wanted.Mode&unix.S_IFMT == unix.S_IFBLK {
		if is, err := p.isBindMounted(at, wanted.Rdev); is || err != nil {
			return err
		}
	}
	return p.Unpin(ctx, at)
}

// Unpin removes the pin at this path, the path, and its directory if it is empty. An incomplete or missing pin is fine.
// It fails if a process keeps the loop device open.
func (p *Pinner) Unpin(ctx context.Context, at string) error {
	loops, err := p.loopsOf(at)
	if err != nil {
		return fmt.Errorf("unpin device at %q: %w", at, err)
	}
	for _, loop := range loops {
		if err := p.loops.Detach(loop); err != nil {
			return fmt.Errorf("unpin device at %q: %w", at, err)
		}
	}
	if err := p.unmountWhenFree(ctx, at, loops); err != nil {
		return fmt.Errorf("unpin device at %q: %w", at, err)
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unpin device at %q: %w", at, err)
	}
	if err := unix.Rmdir(filepath.Dir(at)); err != nil && err != unix.ENOENT && err != unix.ENOTEMPTY {
		return fmt.Errorf("unpin device at %q: %w", at, &os.PathError{Op: "rmdir", Path: filepath.Dir(at), Err: err})
	}
	return nil
}

// UnpinAll ends all pins in a directory, which is fine if it is missing.
func (p *Pinner) UnpinAll(ctx context.Context, dir string) error {
	pins, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list pinned devices: %w", err)
	}
	for _, pin := range pins {
		if err := p.Unpin(ctx, filepath.Join(dir, pin.Name())); err != nil {
			return err
		}
	}
	return nil
}

// unmountWhenFree unmounts what is bind-mounted at the path, as soon as these detached loop devices are closed.
func (p *Pinner) unmountWhenFree(ctx context.Context, at string, detached []loopdev.Device) error {
	for wait := minBusyWait; ; wait *= 2 {
		err := mounts.UnmountPoint(ctx, p.mounter, at)
		if !errors.Is(err, unix.EBUSY) || len(detached) == 0 {
			return err
		}
		if wait > maxBusyWait {
			return fmt.Errorf("%s is open (fuser shows by which process): %w", p.loops.Path(detached[0].Number), err)
		}
		if !wakeup.Sleep(ctx, p.clock, wait) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// loopsOf lists the loop devices that are attached to what is bind-mounted at the path.
func (p *Pinner) loopsOf(at string) ([]loopdev.Device, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(at))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, filepath.Base(at))
	return p.loops.List(func(backing string) bool { return backing == path })
}

// ListBelow lists the paths of all pins below a directory, whichever process created them, without symbolic links.
func (p *Pinner) ListBelow(dir string) ([]string, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned devices: %w", err)
	}
	found, err := p.loops.List(func(backing string) bool { return strings.HasPrefix(backing, resolved+"/") })
	if err != nil {
		return nil, fmt.Errorf("list pinned devices: %w", err)
	}
	var paths []string
	for _, loop := range found {
		if loop.Offset == offsetBeyondEnd && !loop.Detaching {
			paths = append(paths, loop.Backing)
		}
	}
	return paths, nil
}

// UnpinBelow removes all pins below a directory. It continues after an error and returns all of them.
func (p *Pinner) UnpinBelow(ctx context.Context, dir string) error {
	paths, err := p.ListBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, p.Unpin(ctx, path))
	}
	return errors.Join(errs...)
}
