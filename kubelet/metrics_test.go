package kubelet

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/server"
	"github.com/berth-dev/berth/kubelet/status"
)

// TestMetricsHaveUpstreamsNames drives everything that counts, and holds the names and labels that others' dashboards
// look for. Those of probes, volumes and resources are held where they are made.
func TestMetricsHaveUpstreamsNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	timings, starts := newTimings(registry), newLives(registry, nil)
	runtime := fake.New(clocktesting.NewFakePassiveClock(time.Now()))
	runtime.FailNext("RunPodSandbox", errors.New("no"))
	sandboxes := &measured{Runtime: runtime, timings: timings, clock: clocktesting.NewFakePassiveClock(time.Now())}
	_, err := sandboxes.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "strict"})
	require.Error(t, err)
	timings.observe("RunPodSandbox", time.Second, err)
	timings.observe("Version", time.Second, nil)
	starts.SandboxStarted(true, nil)
	starts.SandboxStarted(true, errors.New("no"))
	starts.ContainerStarted(podutil.Init, "", nil)
	starts.ContainerStarted(podutil.Regular, "ErrImagePull", errors.New("no"))
	starts.PodRunning(time.Second, 2*time.Second, time.Second)
	starts.ContainerEnded(podutil.Regular, 137, "OOMKilled")
	starts.WorkerStarted(time.Second)
	starts.SyncDuration("sync", time.Second)
	starts.OrphanedPod()
	starts.ResizeFinished(time.Second, true)
	starts.ResizeRequested("cpu", "limits", "add")
	starts.ResizeAccepted("pod_updated")
	starts.Restarted(true)
	starts.ResizeInfeasible(needsSwap)
	starts.statusWritten(time.Second)
	starts.relisted(time.Second)
	starts.Evicted(outgrown)
	images := newImageTimes(registry)
	images.observe(11<<20, time.Second)
	images.count("age")
	requests := server.NewRequestMetrics(registry, nil).Instrument("readwrite", http.NotFoundHandler())
	for _, path := range []string{"/pods/", "/made/up"} {
		requests.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, http.NoBody))
	}
	newJudged(registry, &refusing{}).Admit(nil, nil)
	static := testPod(func(p *corev1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} })
	over := testPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	registry.MustRegister(&gauges{
		node: "n", drift: func() int64 { return 3 }, pods: func() []*corev1.Pod { return []*corev1.Pod{static, over} },
		working: func() map[podworker.WorkerState]int {
			return map[podworker.WorkerState]int{{Lifecycle: "sync", Config: "desired"}: 1}
		},
	})

	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string][]string{}
	for _, family := range families {
		labels := []string{}
		for _, label := range family.Metric[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		found[family.GetName()] = labels
	}
	require.Equal(t, map[string][]string{
		"kubelet_runtime_operations_total": {"operation_type"}, "kubelet_runtime_operations_errors_total": {"operation_type"},
		"kubelet_runtime_operations_duration_seconds": {"operation_type"},
		"kubelet_run_podsandbox_duration_seconds":     {"runtime_handler"}, "kubelet_run_podsandbox_errors_total": {"runtime_handler"},
		"kubelet_started_pods_total": {}, "kubelet_started_pods_errors_total": {}, "kubelet_pod_start_duration_seconds": {},
		"kubelet_started_containers_total": {"container_type"}, "kubelet_started_containers_errors_total": {"code", "container_type"},
		"kubelet_admission_rejections_total": {"reason"}, "kubelet_running_pods": {}, "kubelet_desired_pods": {"static"},
		"kubelet_active_pods": {"static"}, "kubelet_running_containers": {"container_state"}, "kubelet_node_name": {"node"},
		"kubelet_pod_start_total_duration_seconds": {}, "kubelet_image_pull_duration_seconds": {"image_size_in_bytes"},
		"kubelet_image_garbage_collected_total": {"reason"}, "kubelet_mirror_pods": {},
		"kubelet_http_requests_total":            {"long_running", "method", "path", "server_type"},
		"kubelet_http_requests_duration_seconds": {"long_running", "method", "path", "server_type"},
		"kubelet_http_inflight_requests":         {"long_running", "method", "path", "server_type"},
		"kubelet_pod_start_sli_duration_seconds": {}, "kubelet_pod_worker_start_duration_seconds": {},
		"kubelet_pod_status_sync_duration_seconds": {}, "kubelet_pod_worker_duration_seconds": {"operation_type"},
		"kubelet_terminated_containers_total": {"container_type", "exit_code", "reason"}, "kubelet_evictions": {"eviction_signal"},
		"kubelet_orphaned_runtime_pods_total": {}, "kubelet_pod_resize_duration_milliseconds": {"success"},
		"kubelet_container_requested_resizes_total":   {"operation", "requirement", "resource"},
		"kubelet_pod_deferred_accepted_resizes_total": {"retry_trigger"}, "kubelet_restarted_pods_total": {"static"},
		"kubelet_pod_infeasible_resizes_total": {"reason_detail"}, "kubelet_pod_pending_resizes": {"reason"},
		"kubelet_pod_in_progress_resizes": {}, "kubelet_working_pods": {"config", "lifecycle", "static"},
		"kubelet_pleg_relist_duration_seconds": {}, "kubelet_pleg_relist_interval_seconds": {}, "kubelet_pleg_last_seen_seconds": {},
		"kubelet_cgroup_version": {}, "berth_kubelet_runtime_drift_total": {},
	}, found, "%v", slices.Sorted(maps.Keys(found)))
	require.Equal(t, map[string]float64{"": 1, "true": 1}, values(t, registry, "kubelet_desired_pods"))
	var paths []string
	for _, family := range families {
		for _, metric := range family.Metric {
			if family.GetName() == "kubelet_http_requests_total" {
				paths = append(paths, metric.Label[2].GetValue())
			}
		}
	}
	require.Equal(t, []string{"other", "pods"}, paths, "nobody can make labels up")
	require.Equal(t, []string{"N/A", "0-10MB", "10MB-100MB", "GT100GB"},
		[]string{sizeClass(0), sizeClass(10 << 20), sizeClass(10<<20 + 1), sizeClass(101 << 30)})
	require.Equal(t, map[string]float64{"": 0, "true": 1}, values(t, registry, "kubelet_active_pods"), "one is over")
	require.Equal(t, map[string]float64{"strict": 1}, values(t, registry, "kubelet_run_podsandbox_errors_total"))
}

// values are those of a counter or gauge with one label, by the label's value.
func values(t *testing.T, registry *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			if family.GetName() == name {
				out[metric.Label[0].GetValue()] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
	}
	return out
}

// refusing takes no Pod.
type refusing struct{ admission }

func (refusing) Admit(*corev1.Pod, []*corev1.Pod) *status.Failure {
	return &status.Failure{Reason: "OutOfcpu"}
}

func TestRejectionsAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	j := newJudged(registry, &refusing{})
	require.Equal(t, "OutOfcpu", j.Admit(nil, nil).Reason)
	require.Equal(t, "OutOfcpu", j.Admit(nil, nil).Reason)
	require.Equal(t, map[string]float64{"OutOfcpu": 2}, values(t, registry, "kubelet_admission_rejections_total"))
	registry = prometheus.NewRegistry()
	require.Nil(t, newJudged(registry, &takes{}).Admit(nil, nil))
	require.Empty(t, values(t, registry, "kubelet_admission_rejections_total"))
}

// takes takes every Pod.
type takes struct{ admission }

func (takes) Admit(*corev1.Pod, []*corev1.Pod) *status.Failure { return nil }

func TestSuperfluousContainers(t *testing.T) {
	var all []*runtimeapi.Container
	add := func(id, uid, name string, state runtimeapi.ContainerState) {
		all = append(all, &runtimeapi.Container{
			Id: id, CreatedAt: int64(len(all)), State: state, Metadata: &runtimeapi.ContainerMetadata{Name: name},
			Labels: map[string]string{container.PodUIDLabel: uid},
		})
	}
	const exited, running = runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_RUNNING
	for _, id := range []string{"a0", "a1", "a2"} {
		add(id, "u", "a", exited)
	}
	add("a3", "u", "a", running)
	add("b0", "u", "b", exited) // the only one of its name
	add("c0", "u", "c", running)
	add("c1", "u", "c", exited)
	add("c2", "u", "c", exited)
	for range 4 {
		add("foreign", "stranger", "a", exited)
	}
	got := superfluous(all, func(uid types.UID) bool { return uid == "u" })
	require.Equal(t, []string{"a1", "a0"}, got, "the last that ended tells of the Pod, and what runs stays")
}
