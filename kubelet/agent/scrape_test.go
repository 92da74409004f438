package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/kubelet/cm"
	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/testproc"
	podconfig "github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// TestScrapeOfAPodsLife runs a Pod with a whole agent on a fake runtime, and scrapes its metrics: each has changed.
func TestScrapeOfAPodsLife(t *testing.T) {
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v1")
	}
	f := newFixture(t, func(_ *Deps, c *Config) {
		c.Cgroups.Enforcement.Enforce = []string{cm.EnforceNone}
		// The agent mounts its root directory on itself.
		testproc.CleanupOnCrash(t, testproc.Resources{Dirs: []string{filepath.Dir(c.RootDir)}, Cgroups: []string{strings.TrimPrefix(c.Cgroups.Root, "/")}})
	})
	runtime, fakeClock := f.runtime, f.clock
	runtime.SetCgroupDriver(runtimeapi.CgroupDriver_CGROUPFS)
	server := httptest.NewServer(promhttp.HandlerFor(f.agent.Metrics(), promhttp.HandlerOpts{}))
	defer server.Close()
	scrape := func() string {
		resp, err := http.Get(server.URL)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return string(body)
	}
	// waitPositive waits for a line of the scrape to have a value above 0.
	waitPositive := func(line string) {
		t.Helper()
		pattern := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(line) + ` (\S+)$`)
		require.Eventually(t, func() bool {
			match := pattern.FindStringSubmatch(scrape())
			if match == nil {
				return false
			}
			value, err := strconv.ParseFloat(match[1], 64)
			return err == nil && value > 0
		}, time.Minute, 10*time.Millisecond, "%s", line)
	}

	operations := func(name string) string {
		return fmt.Sprintf(`storage_operation_duration_seconds_count{migrated="false",operation_name=%q,status="success",`+
			`volume_plugin="kubernetes.io/empty-dir"}`, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.agent.Start(ctx) }()
	defer func() {
		cancel()
		ended := <-done
		// An attempt that fails would wait for the fake clock.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		require.NoError(t, errors.Join(ended, f.agent.Cleanup(ctx)))
	}()
	no := false
	static := func(name, uid string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: "ns", UID: types.UID(uid), CreationTimestamp: metav1.NewTime(fakeClock.Now()),
				Annotations: map[string]string{"kubernetes.io/config.source": "file"},
			},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, EnableServiceLinks: &no, DNSPolicy: corev1.DNSDefault,
				Containers: []corev1.Container{{
					Name: name, Image: "app:1", ImagePullPolicy: corev1.PullAlways,
					VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}},
				}},
				Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{
					EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(64<<10, resource.BinarySI)},
				}}},
			},
		}
	}
	web := static("app", "u-1")
	f.agent.SetStatic([]*corev1.Pod{web})
	require.Eventually(t, func() bool { return runtime.Running()["app"] == 1 }, time.Minute, time.Millisecond)
	logs := kuberuntime.PodLogsDir(f.agent.base.config.Logs.PodsDir, "ns", "app", "u-1")
	require.NoError(t, os.WriteFile(filepath.Join(logs, "app", "0.log"), []byte("a line\n"), 0o600)) // the fake runtime writes none
	for _, line := range []string{
		"kubelet_pod_start_sli_duration_seconds_count", "kubelet_pod_start_duration_seconds_count",
		"kubelet_pod_start_total_duration_seconds_count", "kubelet_pod_worker_start_duration_seconds_count",
		`kubelet_pod_worker_duration_seconds_count{operation_type="create"}`,
		`kubelet_pod_worker_duration_seconds_count{operation_type="sync"}`, "kubelet_started_pods_total",
		`kubelet_started_containers_total{container_type="container"}`, "kubelet_running_pods",
		`kubelet_running_containers{container_state="running"}`, `kubelet_desired_pods{static="true"}`,
		`kubelet_active_pods{static="true"}`, "kubelet_cgroup_version", `kubelet_node_name{node="n"}`,
		`kubelet_working_pods{config="desired",lifecycle="sync",static="true"}`, "kubelet_pleg_relist_duration_seconds_count",
		"kubelet_pleg_last_seen_seconds", operations("volume_mount"),
		`kubelet_image_manager_ensure_image_requests_total{present_locally="unknown",pull_policy="always",pull_required="true"}`,
		`kubelet_metrics_provider{provider="cadvisor"}`,
		`kubelet_cgroup_manager_duration_seconds_count{operation_type="create"}`,
		`kubelet_container_log_filesystem_used_bytes{container="app",namespace="ns",pod="app",uid="u-1"}`,
	} {
		waitPositive(line)
	}
	runtime.Exit("app", 3)
	waitPositive(`kubelet_terminated_containers_total{container_type="container",exit_code="3",reason=""}`)
	waitPositive(`kubelet_pod_worker_duration_seconds_count{operation_type="terminating"}`)
	waitPositive(`kubelet_working_pods{config="desired",lifecycle="terminated",static="true"}`)
	waitPositive(operations("volume_unmount"))

	require.NotContains(t, scrape(), "kubelet_evictions", "there is none yet")
	greedy := static("greedy", "u-2") // a static Pod would not be evicted
	greedy.Annotations[podconfig.SourceAnnotation] = podconfig.SourceAPI
	f.agent.HandlePod(podconfig.Change{Op: podconfig.Add, Pod: greedy})
	require.Eventually(t, func() bool { return runtime.Running()["greedy"] == 1 }, time.Minute, time.Millisecond)
	full := filepath.Join(f.agent.Components().Volumes.Volumes("u-2")["scratch"].Path, "full")
	require.NoError(t, os.WriteFile(full, make([]byte, 1<<20), 0o600))
	require.Eventually(t, func() bool {
		fakeClock.Step(time.Second)
		return strings.Contains(scrape(), `kubelet_evictions{eviction_signal="emptydirfs.limit"} 1`)
	}, time.Minute, 10*time.Millisecond)
	waitPositive(`kubelet_volume_metric_collection_duration_seconds_count{metric_source="du"}`)
	require.NotContains(t, strings.ToLower(scrape()), "nan")
}
