package hold_test

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
	"github.com/berth-dev/berth/volume/hold"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

// soon is how long the tests wait for what needs no clock.
const soon = time.Minute

// world is a directory for holds and a real block device.
type world struct {
	*hold.Holder
	t      *testing.T
	dir    string
	loop   loopdev.Device
	device string // its path
	at     string // a path for a hold of it
	loops  loopdev.Devices
	clock  *testclock.FakeClock
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, loops: loopdev.New(), clock: testclock.NewFakeClock(time.Now())}
	w.dir = testsuite.Root(t)
	w.loop = testsuite.LoopDevice(t)
	w.device = w.loops.Path(w.loop.Number)
	w.at = filepath.Join(w.dir, "pv", "dev", "uid")
	w.restart()
	return w
}

// restart is kill -9 and a new process. Its clock is the real one: tests that look for a free device at the same time may
// have one of ours open for a moment.
func (w *world) restart() { w.Holder = hold.New(hold.Deps{}) }

// hold holds a device.
func (w *world) hold(device, at string) {
	w.t.Helper()
	require.NoError(w.t, w.Hold(w.t.Context(), device, at))
}

// holding lists the loop devices below the directory.
func (w *world) holding() []loopdev.Device {
	w.t.Helper()
	found, err := w.loops.List(func(backing string) bool { return filepath.Dir(filepath.Dir(filepath.Dir(backing))) == w.dir })
	require.NoError(w.t, err)
	return found
}

// gone fails unless nothing is left of the hold.
func (w *world) gone() {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return len(w.holding()) == 0 }, soon, time.Millisecond, "others may have it open for a moment")
	require.NoDirExists(w.t, filepath.Dir(w.at))
	left, err := mounts.Under(w.dir)
	require.NoError(w.t, err)
	require.Empty(w.t, left)
}

// attached reports whether the number of the device is still taken by it. Other tests may take it afterwards.
func (w *world) attached() bool {
	w.t.Helper()
	found, err := w.loops.List(func(string) bool { return true })
	require.NoError(w.t, err)
	return slices.ContainsFunc(found, func(d loopdev.Device) bool {
		return d.Number == w.loop.Number && d.Sequence == w.loop.Sequence
	})
}

// numberIsFree waits until the device is gone, which others may have open for a moment, as they look for a free one.
func (w *world) numberIsFree() {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return !w.attached() }, soon, time.Millisecond)
}

// detach has the host let the device go.
func (w *world) detach() {
	w.t.Helper()
	require.NoError(w.t, w.loops.Detach(w.loop))
}

// releaseInVain is the error of a Release that waits for somebody who does not let go.
func (w *world) releaseInVain() error {
	done := make(chan error, 1)
	go func() { done <- w.Release(w.t.Context(), w.at) }()
	for {
		select {
		case err := <-done:
			return err
		default:
			w.clock.Step(time.Second)
			runtime.Gosched()
		}
	}
}

func TestNumberIsNotGivenAwayWhileTheDeviceIsHeld(t *testing.T) {
	w := newWorld(t)
	w.hold(w.device, w.at)
	w.detach()
	require.True(t, w.attached(), "the container's number must stay this device's")
	w.restart()
	require.True(t, w.attached(), "it must outlive the process")
	require.NoError(t, w.Release(t.Context(), w.at))
	w.numberIsFree()
	w.gone()
}

func TestHoldShowsNothing(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.WriteFile(w.device, []byte("secret"), 0))
	w.hold(w.device, w.at)
	held := w.holding()
	require.Len(t, held, 1)
	content, err := os.ReadFile(w.loops.Path(held[0].Number))
	require.NoError(t, err)
	require.Empty(t, content)
	require.Error(t, os.WriteFile(w.loops.Path(held[0].Number), []byte("x"), 0))
	bound, err := os.Open(w.at)
	require.NoError(t, err)
	defer bound.Close()
	shown := make([]byte, 6)
	_, err = bound.Read(shown)
	require.NoError(t, err)
	require.Equal(t, "secret", string(shown), "what is bound is the device itself")
	require.NoError(t, bound.Close())
	require.NoError(t, w.Release(t.Context(), w.at))
}

func TestHoldIsRepeatable(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.Release(t.Context(), w.at), "what is not there is fine")
	w.hold(w.device, w.at)
	first := w.holding()
	require.Len(t, first, 1)
	w.hold(w.device, w.at)
	w.restart()
	w.hold(w.device, w.at)
	require.Equal(t, first, w.holding(), "nothing is held twice")
	mounted, err := mounts.Under(w.dir)
	require.NoError(t, err)
	require.Equal(t, []string{w.at}, mounted)
	require.NoError(t, w.ReleaseOther(t.Context(), w.device, w.at))
	require.Equal(t, first, w.holding())
	for range 2 {
		require.NoError(t, w.Release(t.Context(), w.at))
		w.gone()
	}
}

// TestProcessThatDiedHalfway leaves what a process that is killed after each of its steps leaves, for the next one to go
// on with or to clean up.
func TestProcessThatDiedHalfway(t *testing.T) {
	steps := []func(*world){
		func(w *world) {
			require.NoError(w.t, os.MkdirAll(filepath.Dir(w.at), 0o750))
			require.NoError(w.t, os.WriteFile(w.at, nil, 0o600))
		},
		func(w *world) { require.NoError(w.t, mounts.Syscalls{}.Mount(w.device, w.at, "", []string{"bind"})) },
		func(w *world) {
			for _, loop := range w.holding() {
				require.NoError(w.t, w.loops.Detach(loop))
			}
			file, err := os.Open(w.at)
			require.NoError(w.t, err)
			defer file.Close()
			_, err = w.loops.Attach(file, loopdev.Options{}) // one of upstream's
			require.NoError(w.t, err)
		},
	}
	for died := range len(steps) + 1 {
		for name, next := range map[string]func(*world){
			"Hold":    func(w *world) { w.hold(w.device, w.at); require.Len(w.t, w.holding(), 1) },
			"Release": func(*world) {},
		} {
			t.Run(fmt.Sprintf("%s after %d steps", name, died), func(t *testing.T) {
				w := newWorld(t)
				for _, step := range steps[:died] {
					step(w)
				}
				next(w)
				require.NoError(t, w.Release(t.Context(), w.at))
				w.gone()
			})
		}
	}
}

func TestAfterAReboot(t *testing.T) {
	w := newWorld(t)
	w.hold(w.device, w.at)
	for _, loop := range w.holding() {
		require.NoError(t, w.loops.Detach(loop))
	}
	require.NoError(t, mounts.UnmountAll(t.Context(), mounts.Syscalls{}, w.dir))
	w.restart()
	require.FileExists(t, w.at)
	w.hold(w.device, w.at)
	require.Len(t, w.holding(), 1)
	require.NoError(t, w.Release(t.Context(), w.at))
	w.gone()
}

func TestOtherDeviceTakesThePlace(t *testing.T) {
	w := newWorld(t)
	other := testsuite.BlockDevice(t)
	w.hold(w.device, w.at)
	w.hold(other, w.at)
	require.Len(t, w.holding(), 1)
	w.detach()
	w.numberIsFree()
	require.NoError(t, w.ReleaseOther(t.Context(), w.device, w.at))
	w.gone()
	require.NoError(t, w.ReleaseOther(t.Context(), w.device, w.at))

	// A link was at this place before there were holds.
	require.NoError(t, os.MkdirAll(filepath.Dir(w.at), 0o750))
	require.NoError(t, os.Symlink(other, w.at))
	w.hold(other, w.at)
	require.Len(t, w.holding(), 1)
	require.NoError(t, w.Release(t.Context(), w.at))
	require.NoError(t, os.MkdirAll(filepath.Dir(w.at), 0o750))
	require.NoError(t, os.Symlink(other, w.at))
	require.NoError(t, w.Release(t.Context(), w.at))
	w.gone()
}

func TestDeviceThatTheHostHasLost(t *testing.T) {
	w := newWorld(t)
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(w.device, &stat))
	node := filepath.Join(w.dir, "node")
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(stat.Rdev)))
	w.hold(node, w.at)
	require.NoError(t, os.Remove(node)) // as when a disk is pulled out
	require.Len(t, w.holding(), 1)
	require.ErrorIs(t, w.Hold(t.Context(), node, w.at), os.ErrNotExist)
	require.NoError(t, w.Release(t.Context(), w.at))
	w.gone()
}

func TestHoldThatSomebodyHasOpen(t *testing.T) {
	w := newWorld(t)
	w.Holder = hold.New(hold.Deps{Clock: w.clock})
	w.hold(w.device, w.at)
	held := w.holding()[0]
	open, err := w.loops.Open(held.Number, os.O_RDONLY)
	require.NoError(t, err)
	defer open.Close()
	err = w.releaseInVain()
	require.ErrorIs(t, err, unix.EBUSY)
	require.ErrorContains(t, err, "somebody has "+w.loops.Path(held.Number)+" open")

	// It ends when that one lets go, so it holds nothing: another one does.
	w.hold(w.device, w.at)
	require.Len(t, w.holding(), 2)
	require.ErrorIs(t, w.releaseInVain(), unix.EBUSY)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, w.Release(ctx, w.at), context.Canceled)

	// Who has it open for a moment only is waited for.
	done := make(chan error, 1)
	go func() { done <- w.Release(t.Context(), w.at) }()
	require.Eventually(t, w.clock.HasWaiters, soon, time.Millisecond)
	require.NoError(t, open.Close())
	w.clock.Step(time.Second)
	require.NoError(t, <-done)
	w.gone()
}

func TestWhatCannotBeHeld(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, w.Hold(t.Context(), file, w.at), "is no block device")
	require.ErrorIs(t, w.Hold(t.Context(), filepath.Join(w.dir, "missing"), w.at), os.ErrNotExist)
	node := filepath.Join(w.dir, "node") // of a device that nobody has
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopdev.Major, 1<<19))))
	err := w.Hold(t.Context(), node, w.at)
	require.Error(t, err)
	require.ErrorContains(t, err, "hold device \""+node+"\" at \""+w.at+"\"")
	require.NoError(t, w.Release(t.Context(), w.at))
	w.gone()
}

func TestBelowTellsHoldsFromOthers(t *testing.T) {
	w := newWorld(t)
	image, err := os.Create(filepath.Join(w.dir, "image"))
	require.NoError(t, err)
	defer image.Close()
	other, err := w.loops.Attach(image, loopdev.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, w.loops.Detach(other)) }()
	w.hold(w.device, w.at)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(w.dir, link))
	for _, dir := range []string{w.dir, link} {
		paths, err := w.Below(dir)
		require.NoError(t, err)
		require.Equal(t, []string{w.at}, paths)
	}
	none, err := w.Below(filepath.Join(w.dir, "p"))
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, w.Release(t.Context(), filepath.Join(link, "pv", "dev", "uid")))
	w.gone()
}

func TestManyPodsHoldOneDevice(t *testing.T) {
	w := newWorld(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			at := filepath.Join(filepath.Dir(w.at), fmt.Sprint(i))
			for range 5 {
				if err := w.Hold(t.Context(), w.device, at); err != nil {
					t.Error(err)
				}
				if err := w.Release(t.Context(), at); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	w.gone()
}

func TestLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "link")
	for _, step := range []struct {
		to     string
		before bool
	}{{"/a", false}, {"/a", true}, {"/b", true}} {
		before, err := hold.Link(step.to, path)
		require.NoError(t, err)
		require.Equal(t, step.before, before)
		have, err := os.Readlink(path)
		require.NoError(t, err)
		require.Equal(t, step.to, have)
	}
	require.NoError(t, os.Symlink("/c", path+"~new")) // left by a process that died
	before, err := hold.Link("/d", path)
	require.NoError(t, err)
	require.True(t, before)
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// BenchmarkHold is what a hold adds to the start of a Pod with a block device.
func BenchmarkHold(b *testing.B) {
	dir, device := testsuite.Root(b), testsuite.BlockDevice(b)
	holder := hold.New(hold.Deps{})
	at := filepath.Join(dir, "pv", "dev", "uid")
	for b.Loop() {
		if err := holder.Hold(b.Context(), device, at); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := holder.Release(b.Context(), at); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkRelease is what a hold adds to the end of a Pod with a block device.
func BenchmarkRelease(b *testing.B) {
	dir, device := testsuite.Root(b), testsuite.BlockDevice(b)
	holder := hold.New(hold.Deps{})
	at := filepath.Join(dir, "pv", "dev", "uid")
	for b.Loop() {
		b.StopTimer()
		if err := holder.Hold(b.Context(), device, at); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := holder.Release(b.Context(), at); err != nil {
			b.Fatal(err)
		}
	}
}
