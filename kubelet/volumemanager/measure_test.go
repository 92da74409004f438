package volumemanager_test

import (
	"os"
	"path/filepath"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume/testsuite"
)

// TestDeadFileServerHoldsOneThread measures a Pod's volumes again and again while the file server of one does not respond.
func TestDeadFileServerHoldsOneThread(t *testing.T) {
	f := newFixture(t)
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(volumemanager.NewCollector(f.Manager)))
	volumes := []corev1.Volume{
		{Name: "dead", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "fine", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	p := pod("a", volumes...)
	require.NoError(t, f.Mount(t.Context(), p))
	path := ""
	for name, mounted := range f.Volumes(p.UID) {
		if name == "dead" {
			path = mounted.Path
		}
	}
	require.NotEmpty(t, path)
	stop := testsuite.DeadFileServer(t, path)

	threads := pprof.Lookup("threadcreate").Count()
	began := time.Now()
	for range 100 {
		stats, err := f.Stats(t.Context(), p.UID)
		require.ErrorContains(t, err, `measure volume "dead"`)
		require.ErrorContains(t, err, "check that it is reachable")
		require.Contains(t, stats, "fine")
	}
	require.Less(t, time.Since(began), 10*time.Second, "only the first caller waits")
	require.Less(t, pprof.Lookup("threadcreate").Count()-threads, 10, "threads")
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "berth_volume_measurements_blocked" {
			require.EqualValues(t, 1, family.GetMetric()[0].GetGauge().GetValue())
		}
	}
	stop()
	require.Eventually(t, func() bool {
		stats, err := f.Stats(t.Context(), p.UID)
		return err == nil && len(stats) == 2
	}, waitTimeout, 10*time.Millisecond)
}

// TestUsageIsReportedWhileItIsMeasuredAgain has an emptyDir whose files take longer to count than a caller waits.
func TestUsageIsReportedWhileItIsMeasuredAgain(t *testing.T) {
	f := newFixture(t)
	p := pod("a", corev1.Volume{Name: "large", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	require.NoError(t, f.Mount(t.Context(), p))
	path := f.Volumes(p.UID)["large"].Path
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), make([]byte, 1<<20), 0o600))
	before, err := f.Stats(t.Context(), p.UID)
	require.NoError(t, err)
	require.InDelta(t, 1<<20, before["large"].Used, 64<<10)

	stop := testsuite.DeadFileServer(t, path)
	f.clock.Step(time.Hour)
	stats, err := f.Stats(t.Context(), p.UID)
	require.NoError(t, err)
	require.Equal(t, before, stats)
	stop()
	require.NoError(t, os.WriteFile(filepath.Join(path, "another"), make([]byte, 1<<20), 0o600))
	require.Eventually(t, func() bool {
		f.clock.Step(time.Hour)
		stats, err := f.Stats(t.Context(), p.UID)
		return err == nil && stats["large"].Used >= 2<<20
	}, waitTimeout, 10*time.Millisecond)
}
