// Package blockpin keeps the block device of a volume where it is for as long as a Pod uses it.
//
// A container gets the number of a device, not the device. When the host lets the device go and another one gets its
// number, the container has that one in its hands, and nobody is told. The kernel gives no number away while somebody
// has the device open, so somebody has to: not this process, which may be killed while the container runs on, but a
// loop device that the device is attached to.
//
// # What there is of a hold
//
// Its path, which the owner chooses, is a file that the held device is bound on, and the backing file of the loop
// device. So the kernel knows all of it, and a new process finds it by the path alone. There is one hold for each Pod
// and volume. Upstream's node agent keeps its holds in the same way and at the same paths: each takes over from the
// other.
//
// Nobody reads or writes through the loop device: it is read-only and begins behind the end of the device, so that it
// is empty. A container that may use the loop device of this number from earlier finds nothing there, and what looks for
// file systems finds none twice.
//
// # Order
//
// The owner leaves its own trace of the volume before Hold, and removes it after Release: a process that is killed in
// between leaves nothing that cannot be found. The device may be detached from the host only after Release.
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
	"github.com/berth-dev/berth/volume/mounts"
)

// offsetBeyondEnd is the offset at which the loop devices of holds begin: no device is that large. It also tells them from
// the loop devices of others.
const offsetBeyondEnd = math.MaxInt64 &^ 0xfffff

const (
	// minBusyWait and maxBusyWait bound the pauses in which Release waits for whoever has a loop device open. Who looks for a
	// free one, or for what is on a new one (udev), has it open for a moment.
	minBusyWait = time.Millisecond
	maxBusyWait = 256 * time.Millisecond
)

// maxCreateAttempts is how often the directory of a hold may vanish, because another hold in it is released, while the hold's
// file is made.
const maxCreateAttempts = 100

// Deps is what a Holder needs. Both may be nil.
type Deps struct {
	// Mounter mounts. Nil is system calls.
	Mounter mounts.Mounter
	Clock   clock.Clock
}

// Pinner makes and ends holds. It is safe for concurrent use, but calls for one path must not run at the same time.
type Pinner struct {
	mounter mounts.Mounter
	clock   clock.Clock
	loops   loopdev.Devices
}

// New makes a Holder.
func New(deps Deps) *Pinner {
	if deps.Mounter == nil {
		deps.Mounter = mounts.Syscalls{}
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Pinner{mounter: deps.Mounter, clock: deps.Clock, loops: loopdev.New()}
}

// Pin holds the block device by the path at, whose directory it makes. If the device is held there already it does
// nothing; another one that is held there is released. After an error Release is due.
func (p *Pinner) Pin(ctx context.Context, device, at string) error {
	if err := p.pin(ctx, device, at); err != nil {
		return fmt.Errorf("hold device %q at %q: %w", device, at, err)
	}
	return nil
}

func (p *Pinner) pin(ctx context.Context, device, at string) error {
	// From here on the descriptor stands for the device, so that the path cannot be swapped for another one.
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
		return errors.New("it is no block device")
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

// attachLoop has a loop device hold what is bound at the path, which must be the device of this number.
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
		return errors.New("another device is bound there by now")
	}
	_, err = p.loops.Attach(file, loopdev.Options{ReadOnly: true, Offset: offsetBeyondEnd})
	return err
}

// isBindMounted reports whether the device of this number is what is bound at the path.
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

// createMountPoint makes an empty file, and its directory, unless there is a file already.
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

// UnpinOther releases what is held by the path at, unless that is the device.
func (p *Pinner) UnpinOther(ctx context.Context, device, at string) error {
	var held, wanted unix.Stat_t
	if err := unix.Lstat(at, &held); err == unix.ENOENT {
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

// Unpin ends the hold with this path and removes the path, and its directory if nothing else is there. What is half
// made, or not there, is fine. It fails if somebody keeps the loop device open.
func (p *Pinner) Unpin(ctx context.Context, at string) error {
	loops, err := p.loopsOf(at)
	if err != nil {
		return fmt.Errorf("release device held at %q: %w", at, err)
	}
	for _, loop := range loops {
		if err := p.loops.Detach(loop); err != nil {
			return fmt.Errorf("release device held at %q: %w", at, err)
		}
	}
	if err := p.unmountWhenFree(ctx, at, loops); err != nil {
		return fmt.Errorf("release device held at %q: %w", at, err)
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("release device held at %q: %w", at, err)
	}
	if err := unix.Rmdir(filepath.Dir(at)); err != nil && err != unix.ENOENT && err != unix.ENOTEMPTY {
		return fmt.Errorf("release device held at %q: %w", at, &os.PathError{Op: "rmdir", Path: filepath.Dir(at), Err: err})
	}
	return nil
}

// unmountWhenFree unmounts what is bound at the path, as soon as these loop devices, which are detached, let it go.
func (p *Pinner) unmountWhenFree(ctx context.Context, at string, detached []loopdev.Device) error {
	for wait := minBusyWait; ; wait *= 2 {
		err := mounts.UnmountPoint(ctx, p.mounter, at)
		if !errors.Is(err, unix.EBUSY) || len(detached) == 0 {
			return err
		}
		if wait > maxBusyWait {
			return fmt.Errorf("somebody has %s open (fuser shows who): %w", p.loops.Path(detached[0].Number), err)
		}
		timer := p.clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

// loopsOf lists the loop devices that hold what is bound at the path.
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

// ListBelow lists the paths of all holds below a directory, whoever made them. It returns them without symbolic links.
func (p *Pinner) ListBelow(dir string) ([]string, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list held devices: %w", err)
	}
	found, err := p.loops.List(func(backing string) bool { return strings.HasPrefix(backing, resolved+"/") })
	if err != nil {
		return nil, fmt.Errorf("list held devices: %w", err)
	}
	var paths []string
	for _, loop := range found {
		if loop.Offset == offsetBeyondEnd && !loop.Detaching {
			paths = append(paths, loop.Backing)
		}
	}
	return paths, nil
}

// UnpinBelow ends all holds below a directory. It goes on after an error and returns all of them.
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
