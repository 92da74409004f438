package loopdev

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// image is an open file of a megabyte, and the loop devices of this machine. The test is skipped without them.
func image(t *testing.T) (Devices, *os.File) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("attaching loop devices needs root: run the tests as root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("needs loop devices: ", err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	require.NoError(t, file.Truncate(1<<20))
	return New(), file
}

// of lists the devices of the file.
func of(t *testing.T, devices Devices, file *os.File) []Device {
	t.Helper()
	found, err := devices.List(func(backing string) bool { return backing == file.Name() })
	require.NoError(t, err)
	return found
}

// gone waits until the file has no device: who looks for a free one at the same time may have it open for a moment.
func gone(t *testing.T, devices Devices, file *os.File) {
	t.Helper()
	require.Eventually(t, func() bool { return len(of(t, devices, file)) == 0 }, time.Minute, time.Millisecond)
}

func TestDeviceFromAttachToDetach(t *testing.T) {
	devices, file := image(t)
	attached, err := devices.Attach(file, Options{Offset: 4096, SectorSize: 512})
	require.NoError(t, err)
	require.Equal(t, file.Name(), attached.Backing)
	require.EqualValues(t, 4096, attached.Offset)
	require.False(t, attached.Detaching)
	require.Equal(t, []Device{attached}, of(t, devices, file))
	device, err := devices.Open(attached.Number, os.O_RDWR)
	require.NoError(t, err)
	_, err = device.WriteAt([]byte(strings.Repeat("x", 512)), 0)
	require.NoError(t, err)
	require.NoError(t, device.Sync())
	written := make([]byte, 1)
	_, err = file.ReadAt(written, 4096)
	require.NoError(t, err)
	require.Equal(t, "x", string(written))

	require.NoError(t, os.Remove(file.Name()))
	require.NoError(t, devices.Detach(attached))
	detaching := attached
	detaching.Detaching = true
	require.Equal(t, []Device{detaching}, of(t, devices, file),
		"it is open; the deleted name is still known")
	require.NoError(t, device.Close())
	gone(t, devices, file)
	require.NoError(t, devices.Detach(attached), "a free device is fine")
}

// TestNumberOfADeviceIsTakenAgain detaches what something else has the number of by now, which must stay attached.
func TestNumberOfADeviceIsTakenAgain(t *testing.T) {
	devices, file := image(t)
	attached, err := devices.Attach(file, Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, devices.Detach(attached)) }()
	require.NotZero(t, attached.Sequence)
	earlier := attached
	earlier.Sequence--
	_, err = devices.OpenPinned(earlier)
	require.ErrorIs(t, err, unix.ENXIO)
	held, err := devices.OpenPinned(attached)
	require.NoError(t, err)
	require.NoError(t, held.Close())
	require.NoError(t, devices.Detach(earlier))
	require.Equal(t, []Device{attached}, of(t, devices, file))
}

func TestReadOnlyDevice(t *testing.T) {
	devices, file := image(t)
	reader, err := os.Open(file.Name())
	require.NoError(t, err)
	defer reader.Close()
	device, err := devices.Attach(reader, Options{ReadOnly: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, devices.Detach(device)) }()
	require.Error(t, os.WriteFile(devices.Path(device.Number), []byte("x"), 0))
}

func TestDeviceThatMustNotBeTakenIsSkipped(t *testing.T) {
	devices, file := image(t)
	var refused []int
	device, err := devices.Attach(file, Options{Skip: func(number int) (bool, error) {
		if len(refused) < 2 {
			refused = append(refused, number)
			return true, nil
		}
		return false, nil
	}})
	require.NoError(t, err)
	require.NotContains(t, refused, device.Number)
	require.NoError(t, devices.Detach(device))
}

func TestManyAttachAtOnce(t *testing.T) {
	devices, file := image(t)
	var wg sync.WaitGroup
	attached := make([]Device, 8)
	for i := range attached {
		wg.Go(func() {
			device, err := devices.Attach(file, Options{})
			if err != nil {
				t.Error(err)
			}
			attached[i] = device
		})
	}
	wg.Wait()
	require.Len(t, of(t, devices, file), len(attached))
	for _, device := range attached {
		require.NoError(t, devices.Detach(device))
	}
	gone(t, devices, file)
}

func TestMachineWithoutLoopDevices(t *testing.T) {
	_, file := image(t)
	empty := Devices{sys: t.TempDir(), dev: t.TempDir()}
	_, err := empty.Attach(file, Options{})
	require.ErrorContains(t, err, `is the kernel's module "loop" loaded?`)
	require.Empty(t, of(t, empty, file))
}

// TestDetachBelow frees what lies below one directory, deleted or not, and nothing beside it.
func TestDetachBelow(t *testing.T) {
	devices, beside := image(t)
	dir := filepath.Join(filepath.Dir(beside.Name()), "im")
	files := []*os.File{beside}
	for _, name := range []string{"a", "deep/b"} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		file, err := os.Create(path)
		require.NoError(t, err)
		defer file.Close()
		require.NoError(t, file.Truncate(1<<20))
		files = append(files, file)
	}
	for _, file := range files {
		device, err := devices.Attach(file, Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, devices.Detach(device)) })
		require.Len(t, of(t, devices, file), 1)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "deep")))
	require.NoError(t, devices.DetachBelow(dir))
	require.Len(t, of(t, devices, beside), 1)
	gone(t, devices, files[1])
	gone(t, devices, files[2])
	require.NoError(t, devices.DetachBelow(filepath.Join(dir, "absent")))
}
