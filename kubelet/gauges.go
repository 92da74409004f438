package kubelet

import (
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/podworker"
)

// The metrics below are upstream's in name and labels, but for the one that begins with berth.
var (
	runningPods = prometheus.NewDesc("kubelet_running_pods", "Number of pods that have a running container", nil, nil)
	desiredPods = prometheus.NewDesc("kubelet_desired_pods", "The number of pods the kubelet is being instructed to run",
		[]string{"static"}, nil)
	activePods = prometheus.NewDesc("kubelet_active_pods", "The number of pods the kubelet considers active, which have "+
		"not ended", []string{"static"}, nil)
	mirrorPods        = prometheus.NewDesc("kubelet_mirror_pods", "Static pods that are shown in the API server by a mirror each", nil, nil)
	cgroupVersion     = prometheus.NewDesc("kubelet_cgroup_version", "The version of control groups in use: 1 or 2", nil, nil)
	runningContainers = prometheus.NewDesc("kubelet_running_containers", "Number of containers by state",
		[]string{"container_state"}, nil)
	nodeName = prometheus.NewDesc("kubelet_node_name", "The node's name. The count is always 1.", []string{"node"}, nil)
	drift    = prometheus.NewDesc("berth_kubelet_runtime_drift_total",
		"Pods that a slow listing of the runtime found changed without an event. It should be 0.", nil, nil)
	workingPods = prometheus.NewDesc("kubelet_working_pods", "Pods that have a worker, by where they stand in their life, whether "+
		"they are wanted, and whether they are static.", []string{"lifecycle", "config", "static"}, nil)
	pendingResizes = prometheus.NewDesc("kubelet_pod_pending_resizes", "Pods that ask for resources they were not granted.",
		[]string{"reason"}, nil)
	progressingResizes = prometheus.NewDesc("kubelet_pod_in_progress_resizes", "Pods whose granted resources are not all in force.", nil, nil)
)

// gauges count what is there when somebody asks.
type gauges struct {
	node  string
	pods  func() []*corev1.Pod
	drift func() int64
	// working counts Pods' workers by where they stand.
	working func() map[podworker.WorkerState]int
}

var _ prometheus.Collector = (*gauges)(nil)

// Describe implements prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		runningPods, desiredPods, activePods, mirrorPods, runningContainers, cgroupVersion, nodeName, drift, workingPods, pendingResizes,
		progressingResizes,
	} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	running := 0
	desired, active := map[string]int{"": 0}, map[string]int{"": 0}
	states := map[string]int{"running": 0, "exited": 0, "created": 0}
	g.collectWorkers(out)
	for _, pod := range g.pods() {
		static := staticLabel(podutil.IsStatic(pod))
		desired[static]++
		if !podutil.IsTerminal(&pod.Status) {
			active[static]++
		}
		alive := false
		for _, list := range [][]corev1.ContainerStatus{
			pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
		} {
			for i := range list {
				switch {
				case list[i].State.Running != nil:
					states["running"]++
					alive = true
				case list[i].State.Terminated != nil:
					states["exited"]++
				case list[i].ContainerID != "":
					states["created"]++
				}
			}
		}
		if alive {
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
	out <- prometheus.MustNewConstMetric(mirrorPods, prometheus.GaugeValue, float64(desired["true"]))
	version := 1.0
	if cgroups.IsCgroup2UnifiedMode() {
		version = 2
	}
	out <- prometheus.MustNewConstMetric(cgroupVersion, prometheus.GaugeValue, version)
	for state, n := range states {
		out <- prometheus.MustNewConstMetric(runningContainers, prometheus.GaugeValue, float64(n), state)
	}
	out <- prometheus.MustNewConstMetric(nodeName, prometheus.GaugeValue, 1, g.node)
	out <- prometheus.MustNewConstMetric(drift, prometheus.CounterValue, float64(g.drift()))
}

// collectWorkers counts workers and changes of resources.
func (g *gauges) collectWorkers(out chan<- prometheus.Metric) {
	pending, progressing := map[string]int{"deferred": 0, "infeasible": 0}, 0
	for _, pod := range g.pods() {
		for _, c := range pod.Status.Conditions {
			switch {
			case c.Status != corev1.ConditionTrue:
			case c.Type == corev1.PodResizePending:
				pending[strings.ToLower(c.Reason)]++
			case c.Type == corev1.PodResizeInProgress:
				progressing++
			}
		}
	}
	for reason, n := range pending {
		out <- prometheus.MustNewConstMetric(pendingResizes, prometheus.GaugeValue, float64(n), reason)
	}
	out <- prometheus.MustNewConstMetric(progressingResizes, prometheus.GaugeValue, float64(progressing))
	for at, n := range g.working() {
		out <- prometheus.MustNewConstMetric(workingPods, prometheus.GaugeValue, float64(n), at.Lifecycle, at.Config,
			staticLabel(at.Static))
	}
}
