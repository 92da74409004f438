package stats_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/stats"
)

// series returns the values of a metric by the values of its labels, which are in the order of the labels' names.
func series(t *testing.T, gatherer prometheus.Gatherer, name string, labels ...string) map[string]float64 {
	t.Helper()
	families, err := gatherer.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.Metric {
			var names []string
			values := ""
			for _, label := range metric.Label {
				names, values = append(names, label.GetName()), values+" "+label.GetValue()
			}
			require.Equal(t, labels, names)
			found[values] = metric.GetGauge().GetValue()
		}
	}
	return found
}

// TestSwapMetrics has containers whose cgroups limit swap, one whose does not, and those whose swap the runtime reports.
func TestSwapMetrics(t *testing.T) {
	container := func(id string, swap *runtimeapi.SwapUsage) *runtimeapi.ContainerStats {
		return &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: id}}, Swap: swap}
	}
	m := newFixture(t, cm.Hierarchy{Dir: "cgroup", Controllers: []string{"cpu", "memory"}, Unified: true})
	m.pods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}}
	m.runtime = &runtimeWithoutPSI{containers: []*runtimeapi.ContainerStats{
		container("limited", nil), container("none", nil), container("unlimited", nil), container("gone", nil),
		container("reported", &runtimeapi.SwapUsage{SwapUsageBytes: number(5), SwapAvailableBytes: number(7)}),
		container("endless", &runtimeapi.SwapUsage{SwapUsageBytes: number(5), SwapAvailableBytes: number(1<<64 - 6)}),
	}}
	m.write(unifiedGroup("cgroup/kubepods/besteffort/podu/limited", 1))
	m.write(map[string]string{
		"cgroup/kubepods/besteffort/podu/none/memory.swap.current":      "0\n",
		"cgroup/kubepods/besteffort/podu/none/memory.swap.max":          "0\n",
		"cgroup/kubepods/besteffort/podu/unlimited/memory.swap.current": "3\n",
		"cgroup/kubepods/besteffort/podu/unlimited/memory.swap.max":     "max\n",
		"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 400 kB\nSwapTotal: 8 kB\nSwapFree: 5 kB\n",
	})
	metrics := m.provider().Resources(t.Context())
	require.Equal(t, map[string]float64{" limited ns p": 100, " none ns p": 0, " reported ns p": 12},
		series(t, metrics, "container_swap_limit_bytes", "container", "namespace", "pod"))
	require.Equal(t, map[string]float64{" limited ns p": 40, " none ns p": 0, " unlimited ns p": 3, " reported ns p": 5, " endless ns p": 5},
		series(t, metrics, "container_swap_usage_bytes", "container", "namespace", "pod"))
	require.Equal(t, map[string]float64{" ns p": 40 + 3 + 5 + 5}, series(t, metrics, "pod_swap_usage_bytes", "namespace", "pod"))
	require.Equal(t, map[string]float64{"": 3 << 10}, series(t, metrics, "node_swap_usage_bytes"))
}

// TestLogMetrics has containers that run, with logs and without, and one that has ended. The runtime is not asked: it has no statistics.
func TestLogMetrics(t *testing.T) {
	logs := t.TempDir()
	for _, container := range []string{"init", "c"} {
		require.NoError(t, os.Mkdir(filepath.Join(logs, container), 0o700))
		write(t, filepath.Join(logs, container), "0.log", "a line\n")
	}
	write(t, filepath.Join(logs, "c"), "0.log.20270115", string(make([]byte, 1<<20)))
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Unix(1800000000, 0))}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "c"}, {Name: "silent"}},
		},
		Status: corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{{
				Name: "init", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}},
			}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: running}, {Name: "silent", State: running}},
		},
	}
	p, err := stats.New(stats.Deps{
		Runtime: struct{ stats.Runtime }{}, Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} },
		LogDir: func(*corev1.Pod) string { return logs },
	}, stats.Config{NodeName: "n", RootDir: t.TempDir()})
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(stats.NewLogCollector(p))
	found := series(t, registry, "kubelet_container_log_filesystem_used_bytes", "container", "namespace", "pod", "uid")
	require.Len(t, found, 1)
	require.GreaterOrEqual(t, found[" c ns p u"], float64(1<<20), "with its rotated file")
	require.Less(t, found[" c ns p u"], float64(2<<20))

	require.NoError(t, os.RemoveAll(filepath.Join(logs, "c")))
	require.Empty(t, series(t, registry, "kubelet_container_log_filesystem_used_bytes"), "it cannot be read")
}
