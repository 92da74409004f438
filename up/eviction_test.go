package up

import (
	"testing"

	"github.com/stretchr/testify/require"

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
