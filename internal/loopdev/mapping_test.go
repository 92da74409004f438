package loopdev

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMappingFromMapToUnmap needs a kernel with the device mapper, as that of the virtual machine of vm/.
func TestMappingFromMapToUnmap(t *testing.T) {
	devices, file := image(t)
	if err := devices.CheckMapper(); err != nil {
		t.Skip(err)
	}
	attached, err := devices.Attach(file, Options{SectorSize: 512})
	require.NoError(t, err)
	mapping, err := devices.FindMapping(attached.Number)
	require.NoError(t, err)
	require.Nil(t, mapping)
	mapping, err = devices.Map(attached, false)
	require.NoError(t, err)
	again, err := devices.Map(attached, false)
	require.NoError(t, err)
	require.Equal(t, mapping, again)
	found, err := devices.FindMapping(attached.Number)
	require.NoError(t, err)
	require.Equal(t, mapping, found)

	device, err := os.OpenFile(mapping.Path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = device.WriteAt([]byte("through the mapping"), 0)
	require.NoError(t, err)
	require.NoError(t, device.Sync())
	written := make([]byte, 7)
	_, err = file.ReadAt(written, 0)
	require.NoError(t, err)
	require.Equal(t, "through", string(written))
	require.ErrorIs(t, unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0), unix.ENOTTY)

	// It is open, so it stays until it is closed, unless it is mapped again.
	require.NoError(t, devices.Unmap(attached.Number))
	again, err = devices.Map(attached, false)
	require.NoError(t, err)
	require.Equal(t, mapping, again)
	require.NoError(t, device.Close())
	found, err = devices.FindMapping(attached.Number)
	require.NoError(t, err)
	require.Equal(t, mapping, found)

	require.NoError(t, devices.Detach(attached), "which unmaps it")
	gone(t, devices, file)
	require.NoDirExists(t, filepath.Join("/sys/block", filepath.Base(mapping.Path), "dm"))
}

func TestReadOnlyMapping(t *testing.T) {
	devices, file := image(t)
	if err := devices.CheckMapper(); err != nil {
		t.Skip(err)
	}
	attached, err := devices.Attach(file, Options{ReadOnly: true})
	require.NoError(t, err)
	mapping, err := devices.Map(attached, true)
	require.NoError(t, err)
	require.Error(t, os.WriteFile(mapping.Path, []byte("x"), 0))
	require.NoError(t, devices.Detach(attached))
}

func TestMachineWithoutMapper(t *testing.T) {
	empty := Devices{sys: t.TempDir(), dev: t.TempDir()}
	mapping, err := empty.FindMapping(0)
	require.NoError(t, err)
	require.Nil(t, mapping)
	if New().CheckMapper() != nil {
		require.ErrorIs(t, empty.CheckMapper(), ErrNoMapper)
		_, err = empty.Map(Device{}, false)
		require.Error(t, err)
	}
	require.NoError(t, empty.Unmap(0))
}

func TestTableOfAMapping(t *testing.T) {
	table, err := mapTable(3, 100)
	require.NoError(t, err)
	require.Contains(t, string(table), "7:3 0\x00")
	require.Contains(t, string(table), "7:3 8\x00")
	_, err = mapTable(3, 1)
	require.Error(t, err)
}
