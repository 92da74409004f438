package cm

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestOperationsAreMeasured creates, updates and removes a Pod's cgroup with a clock that is two seconds later whenever it is read.
func TestOperationsAreMeasured(t *testing.T) {
	durations := NewDurations(&clocktesting.IntervalClock{Time: time.Unix(1800000000, 0), Duration: 2 * time.Second})
	registry := prometheus.NewRegistry()
	registry.MustRegister(durations)
	seconds := func() map[string][]float64 { // of each observation of an operation, which all are the same
		families, err := registry.Gather()
		require.NoError(t, err)
		found := map[string][]float64{}
		for _, family := range families {
			require.Equal(t, "kubelet_cgroup_manager_duration_seconds", family.GetName())
			for _, metric := range family.Metric {
				require.Len(t, metric.Label, 1)
				require.Equal(t, "operation_type", metric.Label[0].GetName())
				count := metric.GetHistogram().GetSampleCount()
				for range count {
					operation := metric.Label[0].GetValue()
					found[operation] = append(found[operation], metric.GetHistogram().GetSampleSum()/float64(count))
				}
			}
		}
		return found
	}
	// Nothing limits processes here, so that directories are all there is to a cgroup.
	dir := t.TempDir()
	m, err := New(Deps{Durations: durations}, Config{Hierarchies: []Hierarchy{{Dir: dir, Controllers: []string{"pids"}}}})
	require.NoError(t, err)
	ctx, pod := t.Context(), podOf("u-1", corev1.ResourceRequirements{})
	parent, err := m.EnsurePod(ctx, pod)
	require.NoError(t, err)
	require.Equal(t, map[string][]float64{"create": {2}}, seconds())

	_, err = m.EnsurePod(ctx, pod)
	require.NoError(t, err)
	require.NoError(t, m.UnlimitPod(ctx, pod))
	require.Equal(t, map[string][]float64{"create": {2}, "update": {2, 2}}, seconds())

	require.NoError(t, m.RemovePod(ctx, pod.UID))
	require.NoDirExists(t, filepath.Join(dir, parent))
	want := map[string][]float64{"create": {2}, "update": {2, 2}, "destroy": {2}}
	require.Equal(t, want, seconds())
	require.NoError(t, m.RemovePod(ctx, pod.UID))
	require.Equal(t, want, seconds(), "there was nothing to remove")

	require.NoError(t, os.RemoveAll(filepath.Join(dir, "kubepods")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubepods"), nil, 0o600)) // which is in the way
	_, err = m.EnsurePod(ctx, pod)
	require.ErrorContains(t, err, "create cgroup")
	require.Equal(t, []float64{2, 2}, seconds()["create"], "an attempt that fails takes time, too")
}
