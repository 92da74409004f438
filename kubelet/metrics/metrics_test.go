package metrics

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/server"
	"github.com/berth-dev/berth/kubelet/status"
)

// TestMetricsHaveUpstreamsNames records each metric once and compares names and labels with those that dashboards of
// Kubernetes use. The metrics of probes, volumes and resources are tested in their packages.
func TestMetricsHaveUpstreamsNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	runtimeMetrics, pods, relist := NewRuntime(registry), NewPods(registry), NewPLEG(registry, clock.RealClock{})
	runtime := fake.New(clocktesting.NewFakePassiveClock(time.Now()))
	runtime.FailNext("RunPodSandbox", errors.New("no"))
	sandboxes := InstrumentRuntime(runtime, runtimeMetrics, clocktesting.NewFakePassiveClock(time.Now()))
	_, err := sandboxes.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "strict"})
	require.Error(t, err)
	runtimeMetrics.Observe("RunPodSandbox", time.Second, err)
	runtimeMetrics.Observe("Version", time.Second, nil)
	pods.SandboxStarted(&corev1.Pod{}, true, nil)
	pods.SandboxStarted(&corev1.Pod{}, true, errors.New("no"))
	pods.ContainerStarted(&corev1.Pod{}, podutil.Init, "", nil)
	pods.ImageVolumes(1, 2, true)
	pods.ImageVolumes(1, 1, false)
	pods.ContainerStarted(&corev1.Pod{}, podutil.Regular, "ErrImagePull", errors.New("no"))
	pods.PodRunning(time.Second, 2*time.Second, time.Second)
	pods.ContainerEnded(podutil.Regular, 137, "OOMKilled")
	pods.WorkerStarted(time.Second)
	pods.SyncDuration("sync", time.Second)
	pods.OrphanedPod()
	pods.ResizeFinished(time.Second, true)
	pods.ResizeRequested("cpu", "limits", "add")
	pods.ResizeAccepted("pod_updated")
	pods.Restarted(true)
	pods.ResizeInfeasible("swap_limitation")
	pods.ObserveStatusWrite(time.Second)
	relist.Relisted(time.Second)
	pods.Evicted("emptydirfs.limit")
	images := NewImages(registry)
	images.ObservePull(11<<20, time.Second)
	images.CountRemoved("age")
	images.CountCheck("credentialMatch")
	images.CountRequest(corev1.PullIfNotPresent, nil, ptr.To(true))
	hooks := NewHooks(registry)
	hooks.HTTPFallback()
	hooks.SleepCutShort()
	RegisterProvider(registry, true)
	booted := time.Unix(100, 0)
	NewNodeStart(registry, booted, booted.Add(20*time.Second)).Observe(booted.Add(21*time.Second), booted.Add(24*time.Second), booted.Add(30*time.Second))
	NewCredentialProviders(registry, "sha256:0").Ran("vault", time.Second, errors.New("no access"))
	RegisterPullRecords(registry, func() (int, int) { return 1, 2 })
	requests := server.NewRequestMetrics(registry, clock.RealClock{}).Instrument("readwrite", http.NotFoundHandler())
	for _, path := range []string{"/pods/", "/made/up", "/metrics", "/metrics/cadvisor", "/metrics/made/up", "/metrics/processes/proxy"} {
		requests.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, http.NoBody))
	}
	InstrumentAdmitter(registry, outOfCPU).Admit(nil, nil)
	static := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "s", Annotations: map[string]string{"kubernetes.io/config.source": "file"}}}
	terminated := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "orphan"}}
	registry.MustRegister(&PodCollector{
		NodeName: "n", MissedEvents: func() int64 { return 3 }, Pods: func() []*corev1.Pod { return []*corev1.Pod{static, terminated, orphan} },
		Mirrors: func() []*corev1.Pod { return make([]*corev1.Pod, 2) }, IsDesired: func(uid types.UID) bool { return uid != "orphan" },
		WorkerStates: func() map[podworker.WorkerState]int {
			return map[podworker.WorkerState]int{
				{Lifecycle: "sync", Config: "desired"}: 1, {Lifecycle: "terminating", Config: "runtime_only"}: 1,
			}
		},
		ClassRequests: func() cm.Requests { return cm.Requests{GuaranteedMemory: 1} },
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
		"kubelet_started_pods_total": {}, "kubelet_started_pods_errors_total": {}, "kubelet_started_user_namespaced_pods_total": {},
		"kubelet_started_user_namespaced_pods_errors_total": {}, "kubelet_pod_start_duration_seconds": {},
		"kubelet_started_containers_total": {"container_type"}, "kubelet_started_containers_errors_total": {"code", "container_type"},
		"kubelet_admission_rejections_total": {"reason"}, "kubelet_running_pods": {}, "kubelet_desired_pods": {"static"},
		"kubelet_active_pods": {"static"}, "kubelet_running_containers": {"container_state"}, "kubelet_node_name": {"node"},
		"kubelet_pod_start_total_duration_seconds": {}, "kubelet_image_pull_duration_seconds": {"image_size_in_bytes"},
		"kubelet_image_garbage_collected_total": {"reason"}, "kubelet_imagemanager_image_mustpull_checks_total": {"result"},
		"kubelet_imagemanager_ondisk_pullintents": {}, "kubelet_imagemanager_ondisk_pulledrecords": {}, "kubelet_mirror_pods": {},
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
		"kubelet_evented_pleg_connection_latency_seconds": {}, "kubelet_evented_pleg_connection_success_count": {},
		"kubelet_evented_pleg_connection_error_count": {},
		"kubelet_memory_qos_node_memory_min_bytes":    {}, "kubelet_memory_qos_node_memory_low_bytes": {},
		"kubelet_containers_per_pod_count": {}, "kubelet_managed_ephemeral_containers": {}, "kubelet_image_volume_requested_total": {},
		"kubelet_image_volume_mounted_succeed_total": {}, "kubelet_image_volume_mounted_errors_total": {},
		"kubelet_node_startup_pre_kubelet_duration_seconds": {}, "kubelet_node_startup_pre_registration_duration_seconds": {},
		"kubelet_node_startup_registration_duration_seconds": {}, "kubelet_node_startup_post_registration_duration_seconds": {},
		"kubelet_node_startup_duration_seconds": {}, "kubelet_credential_provider_plugin_errors_total": {"plugin_name"},
		"kubelet_credential_provider_plugin_duration": {"plugin_name"}, "kubelet_credential_provider_config_info": {"hash"},
		"kubelet_cgroup_version": {}, "berth_kubelet_runtime_drift_total": {}, "kubelet_metrics_provider": {"provider"},
		"kubelet_image_manager_ensure_image_requests_total": {"present_locally", "pull_policy", "pull_required"},
		"kubelet_lifecycle_handler_http_fallbacks_total":    {}, "kubelet_sleep_action_terminated_early_total": {},
	}, found, "%v", slices.Sorted(maps.Keys(found)))
	require.Equal(t, map[string]float64{"": 1, "true": 1}, values(t, registry, "kubelet_desired_pods"))
	for name, want := range map[string]float64{"pre_kubelet_": 20, "pre_registration_": 1, "registration_": 3, "post_registration_": 6, "": 30} {
		name = "kubelet_node_startup_" + name + "duration_seconds"
		at := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name })
		require.Equal(t, want, families[at].Metric[0].GetGauge().GetValue(), name)
	}
	var paths []string
	for _, family := range families {
		for _, metric := range family.Metric {
			if family.GetName() == "kubelet_http_requests_total" {
				paths = append(paths, metric.Label[2].GetValue())
			}
		}
	}
	require.Equal(t, []string{"metrics", "metrics/cadvisor", "metrics/processes", "other", "pods"}, paths, "a client cannot add label values")
	require.Equal(t, []string{"N/A", "0-10MB", "10MB-100MB", "GT100GB"},
		[]string{sizeClass(0), sizeClass(10 << 20), sizeClass(10<<20 + 1), sizeClass(101 << 30)})
	require.Equal(t, map[string]float64{"": 0, "true": 1}, values(t, registry, "kubelet_active_pods"), "one has terminated")
	mirrors := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "kubelet_mirror_pods" })
	require.Equal(t, 2.0, families[mirrors].Metric[0].GetGauge().GetValue())
	working := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "kubelet_working_pods" })
	var isStatic []string
	for _, metric := range families[working].Metric {
		isStatic = append(isStatic, metric.Label[2].GetValue())
	}
	require.Equal(t, []string{"", "unknown"}, isStatic, "of a Pod that only the runtime has it is not known")
	require.Equal(t, map[string]float64{"strict": 1}, values(t, registry, "kubelet_run_podsandbox_errors_total"))
	require.Equal(t, map[string]float64{"cri": 1}, values(t, registry, "kubelet_metrics_provider"))
	ensured := slices.IndexFunc(families, func(f *dto.MetricFamily) bool {
		return f.GetName() == "kubelet_image_manager_ensure_image_requests_total"
	})
	var request []string
	for _, label := range families[ensured].Metric[0].Label {
		request = append(request, label.GetValue())
	}
	require.Equal(t, []string{"unknown", "ifnotpresent", "true"}, request)
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

// fixedAdmitter returns the same failure for each Pod.
type fixedAdmitter struct{ failure *status.Failure }

// Admit implements podworker.Admitter.
func (a fixedAdmitter) Admit(*corev1.Pod, []*corev1.Pod) *status.Failure { return a.failure }

// Readmit implements podworker.Admitter.
func (a fixedAdmitter) Readmit(*corev1.Pod) *status.Failure { return a.failure }

// Resize implements podworker.Admitter.
func (a fixedAdmitter) Resize(_, _ *corev1.Pod, _ []*corev1.Pod) *status.Failure { return a.failure }

// outOfCPU rejects each Pod.
var outOfCPU = fixedAdmitter{&status.Failure{Reason: "OutOfcpu"}}

func TestRejectionsAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	admitter := InstrumentAdmitter(registry, outOfCPU)
	require.Equal(t, "OutOfcpu", admitter.Admit(nil, nil).Reason)
	require.Equal(t, "OutOfcpu", admitter.Readmit(nil).Reason)
	require.Equal(t, map[string]float64{"OutOfcpu": 2}, values(t, registry, "kubelet_admission_rejections_total"))
	registry = prometheus.NewRegistry()
	require.Nil(t, InstrumentAdmitter(registry, fixedAdmitter{}).Admit(nil, nil))
	require.Empty(t, values(t, registry, "kubelet_admission_rejections_total"))
}
