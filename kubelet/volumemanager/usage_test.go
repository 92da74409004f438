package volumemanager_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/projectquota"
	"github.com/berth-dev/berth/volume/testsuite"
)

func emptyDirs(names ...string) (volumes []corev1.Volume) {
	for _, name := range names {
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	return volumes
}

// TestUsageOfEmptyDirs measures what each emptyDir itself occupies, and not its disk.
func TestUsageOfEmptyDirs(t *testing.T) {
	f := newFixture(t)
	p := pod("a", append(emptyDirs("full", "empty"), memory("mem"))...)
	require.NoError(t, f.Mount(t.Context(), p))
	write := func(name string) {
		require.NoError(t, os.WriteFile(filepath.Join(f.Volumes(p.UID)["full"].Path, name), make([]byte, 1<<20), 0o600))
	}
	write("first")
	stats, err := f.Stats(t.Context(), p.UID)
	require.NoError(t, err)
	full, empty := stats["full"], stats["empty"]
	require.InDelta(t, 1<<20, full.Used, 64<<10)
	require.EqualValues(t, 2, full.InodesUsed)
	require.Less(t, empty.Used, int64(64<<10))
	require.Greater(t, full.Capacity, full.Used)

	write("second")
	again, err := f.Stats(t.Context(), p.UID)
	require.NoError(t, err)
	require.Equal(t, full.Used, again["full"].Used, "the directory is not read again so soon")
	local, err := f.LocalUsage(t.Context(), p.UID)
	require.NoError(t, err)
	require.InDelta(t, 2<<20, local["full"].Bytes, 64<<10, "limits are compared with what it is now")
	again, err = f.Stats(t.Context(), p.UID)
	require.NoError(t, err)
	require.Equal(t, local["full"].Bytes, again["full"].Used, "which is a measurement, too")
	write("third")
	f.clock.Step(time.Minute)
	again, err = f.Stats(t.Context(), p.UID)
	require.NoError(t, err)
	require.InDelta(t, 3<<20, again["full"].Used, 64<<10)
	const durations = "kubelet_volume_metric_collection_duration_seconds "
	values := f.collected()
	require.Equal(t, 6.0, values[durations+"du"], "two volumes, three times")
	require.Equal(t, 4.0, values[durations+"statfs"], "the one in memory, each time")
}

// TestProjectQuotasMeasureEmptyDirs measures the emptyDir of a Pod with a user namespace by one system call.
func TestProjectQuotasMeasureEmptyDirs(t *testing.T) {
	disk := testsuite.ProjectQuotaDisk(t)
	f := newFixtureAt(t, filepath.Join(disk, "kubelet"))
	own, shared := pod("own", emptyDirs("v")...), pod("shared", emptyDirs("v")...)
	own.Spec.HostUsers = ptr.To(false)
	for _, p := range []*corev1.Pod{own, shared} {
		require.NoError(t, f.Mount(t.Context(), p))
		path := f.Volumes(p.UID)["v"].Path
		require.NoError(t, os.WriteFile(filepath.Join(path, "x"), make([]byte, 1<<20), 0o600))
		unix.Sync()
		_, counted, err := projectquota.Usage(path)
		require.NoError(t, err)
		require.Equal(t, p == own, counted, "a Pod without a user namespace could change its project")
		stats, err := f.Stats(t.Context(), p.UID)
		require.NoError(t, err)
		require.InDelta(t, 1<<20, stats["v"].Used, 64<<10)
		require.EqualValues(t, 2, stats["v"].InodesUsed)
	}
	values := f.collected()
	require.Equal(t, 1.0, values["kubelet_volume_metric_collection_duration_seconds fsquota"])
	require.Equal(t, 1.0, values["kubelet_volume_metric_collection_duration_seconds du"])
}

// TestUsageBesideAVolumeThatCannotBeMeasured has a file in place of the directory of one volume's plugin.
func TestUsageBesideAVolumeThatCannotBeMeasured(t *testing.T) {
	f := newFixture(t)
	f.create(configMap("conf", "1"))
	p := pod("a", append(emptyDirs("b", "c", "d", "e", "f", "g", "h", "i"), configMapVolume("conf", "conf"))...)
	require.NoError(t, f.Mount(t.Context(), p))
	plugin := filepath.Dir(f.Volumes(p.UID)["conf"].Path)
	require.NoError(t, os.Rename(plugin, plugin+"-away"))
	require.NoError(t, os.WriteFile(plugin, nil, 0o600))
	used, err := f.LocalUsage(t.Context(), p.UID)
	require.ErrorContains(t, err, `volume "conf" of pod a`)
	require.Len(t, used, 8)
	require.NoError(t, os.Remove(plugin))
	require.NoError(t, os.Rename(plugin+"-away", plugin))
}
