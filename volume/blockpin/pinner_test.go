package blockpin_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

// waitTimeout is how long the tests wait for what needs no clock.
const waitTimeout = time.Minute

// fixture is a directory for pins and a real block device.
type fixture struct {
	*blockpin.Pinner
	t      *testing.T
	dir    string
	loop   loopdev.Device
	device string // its path
	at     string // a path for a pin of it
	loops  loopdev.Devices
	clock  *testclock.FakeClock
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, loops: loopdev.New(), clock: testclock.NewFakeClock(time.Now())}
	f.dir = testsuite.Root(t)
	f.loop = testsuite.LoopDevice(t)
	f.device = f.loops.Path(f.loop.Number)
	f.at = filepath.Join(f.dir, "pv", "dev", "uid")
	f.restart()
	return f
}

// restart is kill -9 and a new process. Its clock is the real one: tests that search for a free device at the same time may
// have one of ours open for a moment.
func (f *fixture) restart() { f.Pinner = blockpin.New(blockpin.Deps{}) }

// pin pins a device.
func (f *fixture) pin(device, at string) {
	f.t.Helper()
	require.NoError(f.t, f.Pin(f.t.Context(), device, at))
}

// pinLoops lists the loop devices below the directory.
func (f *fixture) pinLoops() []loopdev.Device {
	f.t.Helper()
	found, err := f.loops.List(func(backing string) bool { return filepath.Dir(filepath.Dir(filepath.Dir(backing))) == f.dir })
	require.NoError(f.t, err)
	return found
}

// requireUnpinned fails unless nothing is left of the pin.
func (f *fixture) requireUnpinned() {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return len(f.pinLoops()) == 0 }, waitTimeout, time.Millisecond, "other processes may have it open for a moment")
	require.NoDirExists(f.t, filepath.Dir(f.at))
	left, err := mounts.ListBelow(f.dir)
	require.NoError(f.t, err)
	require.Empty(f.t, left)
}

// isAttached reports whether the number still belongs to the device. Other tests may get it afterwards.
func (f *fixture) isAttached() bool {
	f.t.Helper()
	found, err := f.loops.List(func(string) bool { return true })
	require.NoError(f.t, err)
	return slices.ContainsFunc(found, func(d loopdev.Device) bool {
		return d.Number == f.loop.Number && d.Sequence == f.loop.Sequence
	})
}

// waitDetached waits until the device is detached. Other tests that search for a free one may have it open for a moment.
func (f *fixture) waitDetached() {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return !f.isAttached() }, waitTimeout, time.Millisecond)
}

// detach detaches the device from the host.
func (f *fixture) detach() {
	f.t.Helper()
	require.NoError(f.t, f.loops.Detach(f.loop))
}

// unpinWhileBusy returns the error of Unpin while a process keeps the loop device open.
func (f *fixture) unpinWhileBusy() error {
	done := make(chan error, 1)
	go func() { done <- f.Unpin(f.t.Context(), f.at) }()
	return f.untilDone(done)
}

// untilDone moves the clock until there is a result: the timers are set late and one after another.
func (f *fixture) untilDone(done <-chan error) error {
	for {
		select {
		case err := <-done:
			return err
		default:
			f.clock.Step(time.Second)
			runtime.Gosched()
		}
	}
}

func TestNumberIsNotReusedWhileTheDeviceIsPinned(t *testing.T) {
	f := newFixture(t)
	f.pin(f.device, f.at)
	f.detach()
	require.True(t, f.isAttached(), "the number must still belong to this device")
	f.restart()
	require.True(t, f.isAttached(), "the pin must outlive the process")
	require.NoError(t, f.Unpin(t.Context(), f.at))
	f.waitDetached()
	f.requireUnpinned()
}

func TestLoopDeviceOfAPinIsEmpty(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, os.WriteFile(f.device, []byte("secret"), 0))
	f.pin(f.device, f.at)
	pinned := f.pinLoops()
	require.Len(t, pinned, 1)
	content, err := os.ReadFile(f.loops.Path(pinned[0].Number))
	require.NoError(t, err)
	require.Empty(t, content)
	require.Error(t, os.WriteFile(f.loops.Path(pinned[0].Number), []byte("x"), 0))
	bound, err := os.Open(f.at)
	require.NoError(t, err)
	defer bound.Close()
	shown := make([]byte, 6)
	_, err = bound.Read(shown)
	require.NoError(t, err)
	require.Equal(t, "secret", string(shown), "the device itself is bind-mounted")
	require.NoError(t, bound.Close())
	require.NoError(t, f.Unpin(t.Context(), f.at))
}

func TestPinIsIdempotent(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.Unpin(t.Context(), f.at), "a missing pin is fine")
	f.pin(f.device, f.at)
	first := f.pinLoops()
	require.Len(t, first, 1)
	f.pin(f.device, f.at)
	f.restart()
	f.pin(f.device, f.at)
	require.Equal(t, first, f.pinLoops(), "nothing is pinned twice")
	mounted, err := mounts.ListBelow(f.dir)
	require.NoError(t, err)
	require.Equal(t, []string{f.at}, mounted)
	require.NoError(t, f.UnpinOther(t.Context(), f.device, f.at))
	require.Equal(t, first, f.pinLoops())
	for range 2 {
		require.NoError(t, f.Unpin(t.Context(), f.at))
		f.requireUnpinned()
	}
}

// TestProcessThatDiedHalfway simulates a process that was killed after each of its steps: the next one completes the pin or
// removes it.
func TestProcessThatDiedHalfway(t *testing.T) {
	steps := []func(*fixture){
		func(f *fixture) {
			require.NoError(f.t, os.MkdirAll(filepath.Dir(f.at), 0o750))
			require.NoError(f.t, os.WriteFile(f.at, nil, 0o600))
		},
		func(f *fixture) { require.NoError(f.t, mounts.Syscalls{}.Mount(f.device, f.at, "", []string{"bind"})) },
		func(f *fixture) {
			for _, loop := range f.pinLoops() {
				require.NoError(f.t, f.loops.Detach(loop))
			}
			file, err := os.Open(f.at)
			require.NoError(f.t, err)
			defer file.Close()
			_, err = f.loops.Attach(file, loopdev.Options{}) // as that of Kubernetes' kubelet
			require.NoError(f.t, err)
		},
	}
	for died := range len(steps) + 1 {
		for name, next := range map[string]func(*fixture){
			"Hold":    func(f *fixture) { f.pin(f.device, f.at); require.Len(f.t, f.pinLoops(), 1) },
			"Release": func(*fixture) {},
		} {
			t.Run(fmt.Sprintf("%s after %d steps", name, died), func(t *testing.T) {
				f := newFixture(t)
				for _, step := range steps[:died] {
					step(f)
				}
				next(f)
				require.NoError(t, f.Unpin(t.Context(), f.at))
				f.requireUnpinned()
			})
		}
	}
}

func TestAfterAReboot(t *testing.T) {
	f := newFixture(t)
	f.pin(f.device, f.at)
	for _, loop := range f.pinLoops() {
		require.NoError(t, f.loops.Detach(loop))
	}
	require.NoError(t, mounts.UnmountAll(t.Context(), mounts.Syscalls{}, f.dir))
	f.restart()
	require.FileExists(t, f.at)
	f.pin(f.device, f.at)
	require.Len(t, f.pinLoops(), 1)
	require.NoError(t, f.Unpin(t.Context(), f.at))
	f.requireUnpinned()
}

func TestPinReplacesAnotherDevice(t *testing.T) {
	f := newFixture(t)
	other := testsuite.BlockDevice(t)
	f.pin(f.device, f.at)
	f.pin(other, f.at)
	require.Len(t, f.pinLoops(), 1)
	f.detach()
	f.waitDetached()
	require.NoError(t, f.UnpinOther(t.Context(), f.device, f.at))
	f.requireUnpinned()
	require.NoError(t, f.UnpinOther(t.Context(), f.device, f.at))

	// Earlier versions had a link at this path.
	require.NoError(t, os.MkdirAll(filepath.Dir(f.at), 0o750))
	require.NoError(t, os.Symlink(other, f.at))
	f.pin(other, f.at)
	require.Len(t, f.pinLoops(), 1)
	require.NoError(t, f.Unpin(t.Context(), f.at))
	require.NoError(t, os.MkdirAll(filepath.Dir(f.at), 0o750))
	require.NoError(t, os.Symlink(other, f.at))
	require.NoError(t, f.Unpin(t.Context(), f.at))
	f.requireUnpinned()
}

func TestDeviceThatTheHostHasRemoved(t *testing.T) {
	f := newFixture(t)
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(f.device, &stat))
	node := filepath.Join(testsuite.DeviceDir(t), "node")
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(stat.Rdev)))
	f.pin(node, f.at)
	require.NoError(t, os.Remove(node)) // as when a disk is unplugged
	require.Len(t, f.pinLoops(), 1)
	require.ErrorIs(t, f.Pin(t.Context(), node, f.at), os.ErrNotExist)
	require.NoError(t, f.Unpin(t.Context(), f.at))
	f.requireUnpinned()
}

func TestUnpinWhileTheLoopDeviceIsOpen(t *testing.T) {
	f := newFixture(t)
	f.Pinner = blockpin.New(blockpin.Deps{Clock: f.clock})
	f.pin(f.device, f.at)
	pinned := f.pinLoops()[0]
	open, err := f.loops.Open(pinned.Number, os.O_RDONLY)
	require.NoError(t, err)
	defer open.Close()
	err = f.unpinWhileBusy()
	require.ErrorIs(t, err, unix.EBUSY)
	require.ErrorContains(t, err, f.loops.Path(pinned.Number)+" is open")

	// The old loop device is detached when it is closed, so it pins nothing: a new one does.
	f.pin(f.device, f.at)
	require.Len(t, f.pinLoops(), 2)
	require.ErrorIs(t, f.unpinWhileBusy(), unix.EBUSY)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Unpin(ctx, f.at), context.Canceled)

	// Unpin waits for a process that has it open for a moment.
	done := make(chan error, 1)
	go func() { done <- f.Unpin(t.Context(), f.at) }()
	require.Eventually(t, f.clock.HasWaiters, waitTimeout, time.Millisecond)
	require.NoError(t, open.Close())
	// Until other processes have closed it, too, each step is an attempt that fails, and Unpin would give up.
	require.Eventually(t, func() bool { return len(f.pinLoops()) == 0 }, waitTimeout, time.Millisecond)
	require.NoError(t, f.untilDone(done))
	f.requireUnpinned()
}

func TestPinErrors(t *testing.T) {
	f := newFixture(t)
	file := filepath.Join(f.dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, f.Pin(t.Context(), file, f.at), "is not a block device")
	require.ErrorIs(t, f.Pin(t.Context(), filepath.Join(f.dir, "missing"), f.at), os.ErrNotExist)
	node := filepath.Join(testsuite.DeviceDir(t), "node") // of a device that does not exist
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopdev.Major, 1<<19))))
	err := f.Pin(t.Context(), node, f.at)
	require.Error(t, err)
	require.ErrorContains(t, err, "pin device \""+node+"\" at \""+f.at+"\"")
	require.NoError(t, f.Unpin(t.Context(), f.at))
	f.requireUnpinned()
}

func TestListBelowIgnoresOtherLoopDevices(t *testing.T) {
	f := newFixture(t)
	image, err := os.Create(filepath.Join(f.dir, "image"))
	require.NoError(t, err)
	defer image.Close()
	other, err := f.loops.Attach(image, loopdev.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.loops.Detach(other)) }()
	f.pin(f.device, f.at)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(f.dir, link))
	for _, dir := range []string{f.dir, link} {
		paths, err := f.ListBelow(dir)
		require.NoError(t, err)
		require.Equal(t, []string{f.at}, paths)
	}
	none, err := f.ListBelow(filepath.Join(f.dir, "p"))
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, f.Unpin(t.Context(), filepath.Join(link, "pv", "dev", "uid")))
	f.requireUnpinned()
}

func TestManyPodsPinOneDevice(t *testing.T) {
	f := newFixture(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			at := filepath.Join(filepath.Dir(f.at), fmt.Sprint(i))
			for range 5 {
				if err := f.Pin(t.Context(), f.device, at); err != nil {
					t.Error(err)
				}
				if err := f.Unpin(t.Context(), at); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	f.requireUnpinned()
}

func TestSymlink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "link")
	for _, step := range []struct {
		to     string
		before bool
	}{{"/a", false}, {"/a", true}, {"/b", true}} {
		before, err := blockpin.Symlink(step.to, path)
		require.NoError(t, err)
		require.Equal(t, step.before, before)
		have, err := os.Readlink(path)
		require.NoError(t, err)
		require.Equal(t, step.to, have)
	}
	require.NoError(t, os.Symlink("/c", path+"~new")) // left by a process that was killed
	before, err := blockpin.Symlink("/d", path)
	require.NoError(t, err)
	require.True(t, before)
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// BenchmarkPin measures what a pin adds to the start of a Pod with a block device.
func BenchmarkPin(b *testing.B) {
	dir, device := testsuite.Root(b), testsuite.BlockDevice(b)
	pinner := blockpin.New(blockpin.Deps{})
	at := filepath.Join(dir, "pv", "dev", "uid")
	for b.Loop() {
		if err := pinner.Pin(b.Context(), device, at); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := pinner.Unpin(b.Context(), at); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkUnpin measures what a pin adds to the end of a Pod with a block device.
func BenchmarkUnpin(b *testing.B) {
	dir, device := testsuite.Root(b), testsuite.BlockDevice(b)
	pinner := blockpin.New(blockpin.Deps{})
	at := filepath.Join(dir, "pv", "dev", "uid")
	for b.Loop() {
		b.StopTimer()
		if err := pinner.Pin(b.Context(), device, at); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := pinner.Unpin(b.Context(), at); err != nil {
			b.Fatal(err)
		}
	}
}
