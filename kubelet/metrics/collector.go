package metrics

import (
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/podworker"
)

var (
	runningPods = prometheus.NewDesc("kubelet_running_pods", "Number of pods that have a running container", nil, nil)
	desiredPods = prometheus.NewDesc("kubelet_desired_pods", "The number of pods the kubelet is being instructed to run",
		[]string{"static"}, nil)
	activePods = prometheus.NewDesc("kubelet_active_pods", "The number of pods the kubelet considers active, which have "+
		"not ended", []string{"static"}, nil)
	mirrorPods        = prometheus.NewDesc("kubelet_mirror_pods", "The number of mirror pods in the API server", nil, nil)
	cgroupVersion     = prometheus.NewDesc("kubelet_cgroup_version", "The version of cgroups in use: 1 or 2", nil, nil)
	runningContainers = prometheus.NewDesc("kubelet_running_containers", "Number of containers by state",
		[]string{"container_state"}, nil)
	nodeName     = prometheus.NewDesc("kubelet_node_name", "The node's name. The count is always 1.", []string{"node"}, nil)
	missedEvents = prometheus.NewDesc("berth_kubelet_runtime_drift_total",
		"Pods that a relist of the runtime found changed without an event. It should be 0.", nil, nil)
	workingPods = prometheus.NewDesc("kubelet_working_pods", "Number of pods with a pod worker, by lifecycle phase, by whether "+
		"they are configured, and by whether they are static.", []string{"lifecycle", "config", "static"}, nil)
	pendingResizes = prometheus.NewDesc("kubelet_pod_pending_resizes", "Number of pending resizes for pods, by reason.",
		[]string{"reason"}, nil)
	memoryMin = prometheus.NewDesc("kubelet_memory_qos_node_memory_min_bytes",
		"Memory of Guaranteed pods that the kernel never reclaims", nil, nil)
	memoryLow = prometheus.NewDesc("kubelet_memory_qos_node_memory_low_bytes",
		"Memory of Burstable pods that the kernel reclaims last", nil, nil)
	ephemeralContainers = prometheus.NewDesc("kubelet_managed_ephemeral_containers", "Number of ephemeral containers in the node's pods.", nil, nil)
	progressingResizes  = prometheus.NewDesc("kubelet_pod_in_progress_resizes", "Number of in-progress resizes for pods.", nil, nil)
)

// PodCollector computes metrics of the node's Pods at each scrape.
type PodCollector struct {
	// NodeName is the Node's name.
	NodeName string
	// Pods returns the node's Pods with their latest status, Mirrors the mirror Pods.
	Pods, Mirrors func() []*corev1.Pod
	// IsDesired reports whether a source has the Pod.
	IsDesired func(uid types.UID) bool
	// MissedEvents returns how many Pods a relist found changed without an event.
	MissedEvents func() int64
	// ClassRequests returns what the active Pods of each class request, where memory QoS is on; nil where it is off.
	ClassRequests func() cm.Requests
	// WorkerStates counts the pod workers by state.
	WorkerStates func() map[podworker.WorkerState]int
}

var _ prometheus.Collector = (*PodCollector)(nil)

// Describe implements prometheus.Collector.
func (c *PodCollector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		runningPods, desiredPods, activePods, mirrorPods, runningContainers, cgroupVersion, nodeName, missedEvents, workingPods, pendingResizes,
		progressingResizes, ephemeralContainers, memoryMin, memoryLow,
	} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *PodCollector) Collect(out chan<- prometheus.Metric) {
	running := 0
	desired, active := map[string]int{"": 0, "true": 0}, map[string]int{"": 0, "true": 0}
	states := map[string]int{"running": 0, "exited": 0, "created": 0}
	c.collectWorkers(out)
	if c.ClassRequests != nil {
		requests := c.ClassRequests()
		out <- prometheus.MustNewConstMetric(memoryMin, prometheus.GaugeValue, float64(requests.GuaranteedMemory))
		out <- prometheus.MustNewConstMetric(memoryLow, prometheus.GaugeValue, float64(requests.BurstableMemory))
	}
	for _, pod := range c.Pods() {
		static := staticLabel(podutil.IsStatic(pod))
		if c.IsDesired(pod.UID) {
			desired[static]++
			if !podutil.IsTerminal(&pod.Status) {
				active[static]++
			}
		}
		runs := false
		for s := range podutil.Statuses(&pod.Status) {
			switch {
			case s.State.Running != nil:
				states["running"]++
				runs = true
			case s.State.Terminated != nil:
				states["exited"]++
			case s.ContainerID != "":
				states["created"]++
			}
		}
		if runs {
			running++
		}
	}
	out <- prometheus.MustNewConstMetric(runningPods, prometheus.GaugeValue, float64(running))
	for static, n := range desired {
		out <- prometheus.MustNewConstMetric(desiredPods, prometheus.GaugeValue, float64(n), static)
	}
	for static, n := range active {
		out <- prometheus.MustNewConstMetric(activePods, prometheus.GaugeValue, float64(n), static)
	}
	out <- prometheus.MustNewConstMetric(mirrorPods, prometheus.GaugeValue, float64(len(c.Mirrors())))
	version := 1.0
	if cgroups.IsCgroup2UnifiedMode() {
		version = 2
	}
	out <- prometheus.MustNewConstMetric(cgroupVersion, prometheus.GaugeValue, version)
	for state, n := range states {
		out <- prometheus.MustNewConstMetric(runningContainers, prometheus.GaugeValue, float64(n), state)
	}
	out <- prometheus.MustNewConstMetric(nodeName, prometheus.GaugeValue, 1, c.NodeName)
	out <- prometheus.MustNewConstMetric(missedEvents, prometheus.CounterValue, float64(c.MissedEvents()))
}

// collectWorkers counts workers, resizes and ephemeral containers.
func (c *PodCollector) collectWorkers(out chan<- prometheus.Metric) {
	pending, progressing, ephemeral := map[string]int{"deferred": 0, "infeasible": 0}, 0, 0
	for _, pod := range c.Pods() {
		ephemeral += len(pod.Spec.EphemeralContainers)
		for _, condition := range pod.Status.Conditions {
			switch {
			case condition.Status != corev1.ConditionTrue:
			case condition.Type == corev1.PodResizePending:
				pending[strings.ToLower(condition.Reason)]++
			case condition.Type == corev1.PodResizeInProgress:
				progressing++
			}
		}
	}
	for reason, n := range pending {
		out <- prometheus.MustNewConstMetric(pendingResizes, prometheus.GaugeValue, float64(n), reason)
	}
	out <- prometheus.MustNewConstMetric(progressingResizes, prometheus.GaugeValue, float64(progressing))
	out <- prometheus.MustNewConstMetric(ephemeralContainers, prometheus.GaugeValue, float64(ephemeral))
	for state, n := range c.WorkerStates() {
		static := staticLabel(state.Static)
		if state.Config == podworker.ConfigRuntimeOnly {
			static = "unknown"
		}
		out <- prometheus.MustNewConstMetric(workingPods, prometheus.GaugeValue, float64(n), state.Lifecycle, state.Config, static)
	}
}
