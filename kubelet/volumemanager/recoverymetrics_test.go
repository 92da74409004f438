package volumemanager_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume"
)

// collected returns the values of the Manager's metrics that are not about SELinux: of a histogram the number of observations.
func (f *fixture) collected() map[string]float64 {
	f.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(f.Collectors()...)
	families, err := registry.Gather()
	require.NoError(f.t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// TestVolumesOfAnEarlierProcessAreCounted leaves volumes of which one has an unknown plugin, and another is a file where
// the plugin has a directory.
func TestVolumesOfAnEarlierProcessAreCounted(t *testing.T) {
	f := newFixture(t)
	used := pod("used", emptyDir("disk"), memory("mem"))
	require.NoError(t, f.Mount(t.Context(), used))
	require.NoError(t, f.Mount(t.Context(), pod("orphan", emptyDir("disk"))))
	unknown := filepath.Join(volume.PodVolumesDir(f.root, "strange"), "example.com~unknown", "v")
	damaged := volume.Dir(f.root, "used", "kubernetes.io/csi", "damaged")
	for _, dir := range []string{unknown, filepath.Dir(damaged)} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	precious := filepath.Join(unknown, "precious")
	require.NoError(t, os.WriteFile(precious, nil, 0o644))
	require.NoError(t, os.WriteFile(damaged, nil, 0o644))
	require.Zero(t, f.collected()["reconstruct_volume_operations_total"], "nothing was there at the start")

	f.restart()
	require.NoError(t, f.Mount(t.Context(), used))
	counts := func() []float64 {
		values := f.collected()
		return []float64{
			values["reconstruct_volume_operations_total"], values["reconstruct_volume_operations_errors_total"],
			values["force_cleaned_failed_volume_operations_total"], values["force_cleaned_failed_volume_operation_errors_total"],
			values["kubelet_orphan_pod_cleaned_volumes"], values["kubelet_orphan_pod_cleaned_volumes_errors"],
		}
	}
	require.Equal(t, []float64{5, 2, 0, 0, 0, 0}, counts())
	keep := func(uid types.UID) bool { return uid == "used" }
	require.ErrorContains(t, f.CleanupOrphans(t.Context(), keep), "holds files")
	require.Equal(t, []float64{5, 2, 1, 1, 2, 1}, counts())
	require.NoError(t, os.Remove(precious))
	require.NoError(t, f.CleanupOrphans(t.Context(), keep))
	require.Equal(t, []float64{5, 2, 2, 1, 1, 0}, counts(), "the Pods of the last cleanup")
	require.NoError(t, f.CleanupOrphans(t.Context(), keep))
	require.Equal(t, []float64{5, 2, 2, 1, 0, 0}, counts())

	require.NoError(t, os.Remove(damaged))
	require.NoError(t, f.Unmount(t.Context(), "used"))
	require.Equal(t, []float64{5, 2, 2, 1, 0, 0}, counts())
}

// TestDamagedVolumeThatNoPodUses counts each attempt to unmount a volume whose device cannot be found.
func TestDamagedVolumeThatNoPodUses(t *testing.T) {
	f := newFixture(t)
	damaged := volume.Dir(f.root, "gone", "kubernetes.io/csi", "v")
	none := func(types.UID) bool { return false }
	require.NoError(t, f.CleanupOrphans(t.Context(), none), "it waits until the root directory is ready")
	require.NoError(t, os.MkdirAll(filepath.Dir(damaged), 0o755))
	require.NoError(t, os.WriteFile(damaged, nil, 0o644))
	f.restart()
	require.ErrorContains(t, f.CleanupOrphans(t.Context(), none), "not a directory")
	require.NoError(t, os.Remove(damaged))
	require.NoError(t, os.Mkdir(damaged, 0o755))
	require.NoError(t, f.CleanupOrphans(t.Context(), none))
	values := f.collected()
	require.Equal(t, 2.0, values["force_cleaned_failed_volume_operations_total"])
	require.Equal(t, 1.0, values["force_cleaned_failed_volume_operation_errors_total"])
}

// TestVolumeWithADamagedRecordIsNotRecovered counts it as one that could not be recovered, and unmounts it nevertheless.
func TestVolumeWithADamagedRecordIsNotRecovered(t *testing.T) {
	f := newFixture(t)
	dir := volume.Dir(f.root, "gone", "kubernetes.io/csi", "v")
	none := func(types.UID) bool { return false }
	require.NoError(t, f.CleanupOrphans(t.Context(), none), "it waits until the root directory is ready")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vol_data.json"), []byte("{"), 0o600))
	f.restart()
	require.NoError(t, f.CleanupOrphans(t.Context(), none))
	values := f.collected()
	require.Equal(t, 1.0, values["reconstruct_volume_operations_total"])
	require.Equal(t, 1.0, values["reconstruct_volume_operations_errors_total"])
	require.Equal(t, 1.0, values["force_cleaned_failed_volume_operations_total"])
	require.Zero(t, values["force_cleaned_failed_volume_operation_errors_total"])
	require.NoDirExists(t, dir)
}
