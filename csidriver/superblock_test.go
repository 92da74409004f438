package csidriver_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
)

// Offsets in the image of a volume with 1 KiB blocks.
const (
	superblock  = 1024
	mountCount  = 0x34
	groupNumber = 0x5A
	uuid        = 0x68
	firstCopy   = 8193 * 1024
)

// change flips all bits of a byte of the image.
func (d *disk) change(offset int64) {
	d.w.t.Helper()
	image, err := os.OpenFile(d.image(), os.O_RDWR, 0)
	require.NoError(d.w.t, err)
	defer image.Close()
	data := make([]byte, 1)
	_, err = image.ReadAt(data, offset)
	require.NoError(d.w.t, err)
	_, err = image.WriteAt([]byte{^data[0]}, offset)
	require.NoError(d.w.t, err)
}

// TestTornSuperblock stages volumes whose superblock has not the checksum of its content, as after a write of e2fsprogs that was refused.
func TestTornSuperblock(t *testing.T) {
	w := newFixture(t)
	w.start()
	filled := func(name string, size int64) *disk {
		d := w.create(name, size, filesystem("ext4"))
		d.mount()
		d.write("file", "kept")
		d.unmount()
		return d
	}
	t.Run("is repaired", func(t *testing.T) {
		d := filled("torn", 16*mib)
		d.change(superblock + mountCount)
		d.mount()
		require.Equal(t, "kept", d.read("file"))
		d.unmount()
	})
	t.Run("is repaired before an expansion", func(t *testing.T) {
		d := filled("grown", 16*mib)
		_, err := w.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: d.id,
			CapacityRange: &csi.CapacityRange{RequiredBytes: 24 * mib}, VolumeCapability: d.capability})
		require.NoError(t, err)
		d.change(superblock + mountCount)
		d.mount()
		require.Equal(t, "kept", d.read("file"))
		require.Greater(t, d.total(), int64(20*mib))
		d.unmount()
	})
	t.Run("with a journal to replay", func(t *testing.T) {
		d := filled("journal", 16*mib)
		d.mount()
		d.write("late", "in the journal")
		file, err := os.Open(filepath.Join(d.target, "late"))
		require.NoError(t, err)
		require.NoError(t, file.Sync())
		require.NoError(t, file.Close())
		asAfterAPowerCut, err := os.ReadFile(d.image())
		require.NoError(t, err)
		d.unmount()
		require.NoError(t, os.WriteFile(d.image(), asAfterAPowerCut, 0o600))
		d.change(superblock + mountCount)
		d.mount()
		require.Equal(t, "kept", d.read("file"))
		require.Equal(t, "in the journal", d.read("late"))
		d.unmount()
	})
	for name, prepare := range map[string]func() *disk{
		"without a copy":                  func() *disk { return filled("small", 4*mib) },
		"whose copy is torn":              func() *disk { d := filled("both", 16*mib); d.change(firstCopy + groupNumber); return d },
		"whose copy is of another volume": func() *disk { d := filled("foreign", 16*mib); d.change(superblock + uuid); return d },
	} {
		t.Run(name, func(t *testing.T) {
			d := prepare()
			d.change(superblock + mountCount)
			before, err := os.ReadFile(d.image())
			require.NoError(t, err)
			require.NoError(t, d.attach(false))
			require.ErrorContains(t, d.stage(), "Superblock checksum does not match")
			require.NoError(t, d.detach())
			after, err := os.ReadFile(d.image())
			require.NoError(t, err)
			require.Equal(t, before, after)
		})
	}
}
