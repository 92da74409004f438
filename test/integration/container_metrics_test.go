//go:build integration

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// scraped are metrics by their names.
type scraped map[string]*dto.MetricFamily

// find returns the values of a metric that has these labels.
func (s scraped) find(name string, labels map[string]string) (values []float64) {
	for _, m := range s[name].GetMetric() {
		matches := 0
		for _, l := range m.Label {
			if want, ok := labels[l.GetName()]; ok && want == l.GetValue() {
				matches++
			}
		}
		if matches == len(labels) {
			values = append(values, m.GetGauge().GetValue()+m.GetCounter().GetValue()+m.GetUntyped().GetValue())
		}
	}
	return values
}

func scrapeNode(t *testing.T, c *cluster, path string) scraped {
	t.Helper()
	page := c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/metrics/"+path)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	require.NoError(t, err)
	return families
}

// TestContainerMetrics scrapes /metrics/cadvisor as Prometheus does: of a Pod with a limit, of one in the node's network, and of the machine.
func TestContainerMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	for name, spec := range map[string]string{"limited": "", "host": `"hostNetwork": true, `} {
		c.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "labels": {"app": %q}}, "spec": {%s
			"terminationGracePeriodSeconds": 0, "containers": [%s]}}`, name, name, spec,
			shell("/bin/busybox dd if=/dev/zero of=/written bs=1M count=2; exec /bin/busybox sleep 3600",
				`"name": "main", "resources": {"limits": {"memory": "80M", "cpu": "1"}}`)))
		c.waitPod("app="+name, "ready", isReady)
	}
	c.apply(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "restarts", "labels": {"app": "restarts"}}, "spec": {
		"terminationGracePeriodSeconds": 0, "volumes": [{"name": "kept", "emptyDir": {}}],
		"containers": [` + shell("[ -e /kept/ended ] && exec /bin/busybox sleep 3600; /bin/busybox touch /kept/ended",
		`"name": "main", "volumeMounts": [{"name": "kept", "mountPath": "/kept"}]`) + `]}}`)
	c.waitPod("app=restarts", "running again", func(pod *corev1.Pod) bool {
		return isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1
	})
	restarted := map[string]string{"namespace": "default", "pod": "restarts", "container": "main"}
	require.NoError(t, retryUntil(t.Context(), func() error {
		var summary statsapi.Summary
		page := c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/stats/summary")
		require.NoError(t, json.Unmarshal([]byte(page), &summary))
		for i := range summary.Pods {
			if pod := &summary.Pods[i]; pod.PodRef.Name == "restarts" && len(pod.Containers) > 0 {
				require.Len(t, pod.Containers, 1, "the container that ended is not reported beside the one that runs")
				return nil
			}
		}
		return errors.New("the restarted container is not among those measured")
	}, nil))
	main := map[string]string{"namespace": "default", "pod": "limited", "container": "main"}
	var all scraped
	require.NoError(t, retryUntil(t.Context(), func() error {
		all = scrapeNode(t, c, "cadvisor")
		// The runtime measures what containers have written from time to time.
		if written := all.find("container_fs_usage_bytes", main); len(written) != 1 || written[0] < 2<<20 {
			return fmt.Errorf("the container has written %v bytes, want 2 MiB", written)
		}
		return nil
	}, nil))

	one := func(name string, labels map[string]string) float64 {
		t.Helper()
		values := all.find(name, labels)
		require.Len(t, values, 1, "%s of %v", name, labels)
		return values[0]
	}
	require.Positive(t, one("container_cpu_usage_seconds_total", main))
	require.Positive(t, one("container_memory_working_set_bytes", main))
	require.Positive(t, one("container_memory_usage_bytes", main))
	require.Positive(t, one("container_start_time_seconds", main))
	require.InDelta(t, 80e6, one("container_spec_memory_limit_bytes", main), 64<<10, "as the kernel rounds it to pages")
	require.EqualValues(t, 100000, one("container_spec_cpu_quota", main))
	require.EqualValues(t, 1, one("container_processes", main))
	require.EqualValues(t, 0, one("container_oom_events_total", main))
	require.Positive(t, one("container_file_descriptors", main))
	require.Positive(t, one("container_ulimits_soft", main))
	require.NotEmpty(t, all.find("container_memory_failures_total", main))
	require.Len(t, all.find("container_memory_working_set_bytes", restarted), 1)

	pod := map[string]string{"namespace": "default", "pod": "limited", "container": ""}
	require.Positive(t, one("container_network_receive_bytes_total", map[string]string{"pod": "limited", "interface": "eth0"}))
	require.Len(t, all.find("container_memory_working_set_bytes", pod), 2, "the Pod's cgroup and its sandbox")
	require.Empty(t, all.find("container_network_receive_bytes_total", map[string]string{"pod": "host"}),
		"the network of the node is counted once")
	machine := map[string]string{"id": "/"}
	require.NotEmpty(t, all.find("container_network_receive_bytes_total", machine))
	require.NotEmpty(t, all.find("container_fs_limit_bytes", machine))
	require.NotEmpty(t, all.find("container_fs_io_time_seconds_total", machine))
	require.Positive(t, one("container_cpu_usage_seconds_total", machine))
	require.Equal(t, one("machine_memory_bytes", nil), one("container_spec_memory_limit_bytes", machine))
	require.Positive(t, one("machine_cpu_cores", nil))
	require.Positive(t, one("machine_cpu_physical_cores", nil))
	require.Zero(t, one("container_scrape_error", nil))
	require.Zero(t, one("machine_scrape_error", nil))
	require.Contains(t, all, "cadvisor_version_info")
}

// TestContainerMetricsOfTheRuntime scrapes the same page where the feature gate PodAndContainerStatsFromCRI is on, and reads /stats/summary.
func TestContainerMetricsOfTheRuntime(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync", "--feature-gates", "PodAndContainerStatsFromCRI=true")
	importShell(t, c)
	c.apply(podManifest("measured", shell(sleepScript, ""), ""))
	c.waitPod("name=measured", "ready", isReady)
	main := map[string]string{"namespace": "default", "pod": "measured", "container": "main"}
	require.NoError(t, retryUntil(t.Context(), func() error {
		all := scrapeNode(t, c, "cadvisor")
		for _, name := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_processes"} {
			if values := all.find(name, main); len(values) != 1 || values[0] <= 0 {
				return fmt.Errorf("the runtime has %v for %s, want one above 0", values, name)
			}
		}
		if len(all.find("container_network_receive_bytes_total", map[string]string{"pod": "measured"})) == 0 {
			return errors.New("the Pod's network is not measured")
		}
		return nil
	}, nil))
	var summary statsapi.Summary
	page := c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/stats/summary")
	require.NoError(t, json.Unmarshal([]byte(page), &summary))
	require.Len(t, summary.Pods, 1)
	require.Positive(t, *summary.Pods[0].Memory.WorkingSetBytes)
}
