package csidriver_test

import (
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
)

// TestVolumeWithoutAttachment has no call of the controller service for attachment, as with a CSIDriver whose attachRequired is false: the
// node attaches the volume, and detaches it, also with a driver that was restarted in between.
func TestVolumeWithoutAttachment(t *testing.T) {
	for name, capability := range map[string]*csi.VolumeCapability{"filesystem": filesystem("ext4"), "block": rawBlock()} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.start()
			d := w.create("a", 16*mib, capability)
			for range 2 {
				require.NoError(t, d.stage())
				require.NoError(t, d.stage())
				require.NoError(t, d.publish(d.target, false))
				w.start()
				require.Len(t, w.loops(), 1)
				require.NoError(t, d.unpublish())
				require.NoError(t, d.unstage())
				require.Empty(t, w.loops())
				require.NoError(t, d.unstage())
			}
			require.NoError(t, d.remove())
		})
	}
}

// TestAttachmentBelongsToTheController publishes a volume that the node has attached: from then on the node does not detach it.
func TestAttachmentBelongsToTheController(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	require.NoError(t, d.stage())
	require.NoError(t, d.attach(false))
	require.NoError(t, d.unstage())
	require.Len(t, w.loops(), 1, "the volume is published")
	require.NoError(t, d.stage())
	require.NoError(t, d.unstage())
	require.Len(t, w.loops(), 1)
	marks, err := filepath.Glob(filepath.Join(w.dir, "*", "volumes", "*", "attached-by-node"))
	require.NoError(t, err)
	require.Empty(t, marks)
	require.NoError(t, d.detach())
	require.Empty(t, w.loops())
	require.NoError(t, d.remove())
}
