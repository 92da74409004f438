package up

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/kubelet/eviction"
)

func TestDiskThresholdsAreLimited(t *testing.T) {
	for size, want := range map[int64][2]string{
		10 << 30: {"10%", "15%"}, 18 << 30: {"10%", "2Gi"}, 500 << 30: {"2Gi", "2Gi"},
	} {
		hard := eviction.DefaultHard()
		limitDiskThreshold(hard, eviction.NodeFsAvailable, size)
		limitDiskThreshold(hard, eviction.ImageFsAvailable, size)
		require.Equal(t, want, [2]string{hard["nodefs.available"], hard["imagefs.available"]})
		require.Equal(t, "100Mi", hard["memory.available"])
	}
}

// TestImageThresholdIsOfTheImagesDisk has images on a small disk of their own: a threshold that fits the other disk would always be met there.
func TestImageThresholdIsOfTheImagesDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root: run the tests as root")
	}
	c := &Cluster{}
	c.DataDir = t.TempDir()
	for _, disk := range []struct{ dir, size string }{{c.DataDir, "100g"}, {c.ContainerdRoot(), "1g"}} {
		require.NoError(t, os.MkdirAll(disk.dir, 0o700))
		require.NoError(t, unix.Mount("tmpfs", disk.dir, "tmpfs", 0, "size="+disk.size)) // what is not written takes no memory
		t.Cleanup(func() { require.NoError(t, unix.Unmount(disk.dir, unix.MNT_DETACH)) })
	}
	require.NoError(t, os.Mkdir(c.KubeletDir(), 0o700))
	hard := c.evictionConfig().Hard
	require.Equal(t, "2Gi", hard["nodefs.available"])
	require.Equal(t, "15%", hard["imagefs.available"])
}
