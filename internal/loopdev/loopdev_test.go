package loopdev

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
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

func TestDeviceFromAttachToDetach(t *testing.T) {
	devices, file := image(t)
	number, err := devices.Attach(file, Options{Offset: 4096, SectorSize: 512})
	require.NoError(t, err)
	require.Equal(t, []Device{{Number: number, Backing: file.Name(), Offset: 4096}}, of(t, devices, file))
	device, err := devices.Open(number, os.O_RDWR)
	require.NoError(t, err)
	_, err = device.WriteAt([]byte(strings.Repeat("x", 512)), 0)
	require.NoError(t, err)
	require.NoError(t, device.Sync())
	written := make([]byte, 1)
	_, err = file.ReadAt(written, 4096)
	require.NoError(t, err)
	require.Equal(t, "x", string(written))

	require.NoError(t, os.Remove(file.Name()))
	require.NoError(t, devices.Detach(number))
	require.Equal(t, []Device{{Number: number, Backing: file.Name(), Offset: 4096, Detaching: true}}, of(t, devices, file),
		"somebody has it open; the name that is gone is known still")
	require.NoError(t, device.Close())
	require.Empty(t, of(t, devices, file))
	require.NoError(t, devices.Detach(number), "a free device is fine")
}

func TestReadOnlyDevice(t *testing.T) {
	devices, file := image(t)
	reader, err := os.Open(file.Name())
	require.NoError(t, err)
	defer reader.Close()
	number, err := devices.Attach(reader, Options{ReadOnly: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, devices.Detach(number)) }()
	require.Error(t, os.WriteFile(devices.Path(number), []byte("x"), 0))
}

func TestDeviceThatMustNotBeTakenIsSkipped(t *testing.T) {
	devices, file := image(t)
	var refused []int
	number, err := devices.Attach(file, Options{Skip: func(number int) (bool, error) {
		if len(refused) < 2 {
			refused = append(refused, number)
			return true, nil
		}
		return false, nil
	}})
	require.NoError(t, err)
	require.NotContains(t, refused, number)
	require.NoError(t, devices.Detach(number))
}

func TestManyAttachAtOnce(t *testing.T) {
	devices, file := image(t)
	var wg sync.WaitGroup
	numbers := make([]int, 8)
	for i := range numbers {
		wg.Go(func() {
			number, err := devices.Attach(file, Options{})
			if err != nil {
				t.Error(err)
			}
			numbers[i] = number
		})
	}
	wg.Wait()
	require.Len(t, of(t, devices, file), len(numbers))
	for _, number := range numbers {
		require.NoError(t, devices.Detach(number))
	}
	require.Empty(t, of(t, devices, file))
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
		number, err := devices.Attach(file, Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, devices.Detach(number)) })
		require.Len(t, of(t, devices, file), 1)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "deep")))
	require.NoError(t, devices.DetachBelow(dir))
	require.Len(t, of(t, devices, beside), 1)
	require.Empty(t, of(t, devices, files[1]))
	require.Empty(t, of(t, devices, files[2]))
	require.NoError(t, devices.DetachBelow(filepath.Join(dir, "absent")))
}
