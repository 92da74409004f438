package kubelet

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/status"
)

// timings are the metrics of calls to the container runtime, under upstream's names.
type timings struct {
	total, errors *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	// Those of RunPodSandbox alone.
	sandboxErrors   *prometheus.CounterVec
	sandboxDuration *prometheus.HistogramVec
}

func newTimings(registry *prometheus.Registry) *timings {
	labels := []string{"operation_type"}
	t := &timings{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_total", Help: "Calls to the container runtime, by method.",
		}, labels),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total", Help: "Failed calls to the container runtime, by method.",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Help: "Length of calls to the container runtime.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, labels),
		sandboxErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_run_podsandbox_errors_total", Help: "Failed RunPodSandbox calls.",
		}, []string{"runtime_handler"}),
		sandboxDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_run_podsandbox_duration_seconds", Help: "Length of RunPodSandbox calls.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
		}, []string{"runtime_handler"}),
	}
	registry.MustRegister(t.total, t.errors, t.duration, t.sandboxErrors, t.sandboxDuration)
	return t
}

// observe is cri.Config.Observe.
func (t *timings) observe(method string, took time.Duration, err error) {
	t.total.WithLabelValues(method).Inc()
	t.duration.WithLabelValues(method).Observe(took.Seconds())
	if err != nil {
		t.errors.WithLabelValues(method).Inc()
	}
}

// measured is a Runtime whose sandboxes are measured by the handler that runs them; the default one has no name.
type measured struct {
	Runtime
	timings *timings
	clock   clock.PassiveClock
}

// RunPodSandbox implements Runtime.
func (m *measured) RunPodSandbox(ctx context.Context, in *runtimeapi.RunPodSandboxRequest, opts ...grpc.CallOption) (
	*runtimeapi.RunPodSandboxResponse, error,
) {
	start := m.clock.Now()
	resp, err := m.Runtime.RunPodSandbox(ctx, in, opts...)
	m.timings.sandboxDuration.WithLabelValues(in.RuntimeHandler).Observe(m.clock.Since(start).Seconds())
	if err != nil {
		m.timings.sandboxErrors.WithLabelValues(in.RuntimeHandler).Inc()
	}
	return resp, err
}

// judged is an Admitter whose rejections are counted by reason.
type judged struct {
	podworker.Admitter
	rejections *prometheus.CounterVec
}

func newJudged(registry *prometheus.Registry, by podworker.Admitter) *judged {
	j := &judged{by, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_admission_rejections_total", Help: "Cumulative number of pod admission rejections by the kubelet.",
	}, []string{"reason"})}
	registry.MustRegister(j.rejections)
	return j
}

// Admit implements podworker.Admitter.
func (j *judged) Admit(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	failure := j.Admitter.Admit(pod, others)
	if failure != nil {
		j.rejections.WithLabelValues(failure.Reason).Inc()
	}
	return failure
}

// starts are the metrics of what the Pods' workers start, under upstream's names.
type starts struct {
	pods, podErrors             prometheus.Counter
	containers, containerErrors *prometheus.CounterVec
	duration, total             prometheus.Histogram
}

var _ podworker.Metrics = (*lives)(nil)

func newStarts(registry *prometheus.Registry) *starts {
	s := &starts{
		pods: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_total", Help: "Cumulative number of pods started",
		}),
		podErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_errors_total", Help: "Cumulative number of errors when starting pods",
		}),
		containers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_total", Help: "Cumulative number of containers started",
		}, []string{"container_type"}),
		containerErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_errors_total", Help: "Cumulative number of errors when starting containers",
		}, []string{"container_type", "code"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubelet_pod_start_duration_seconds",
			Help:    "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
		}),
		total: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubelet_pod_start_total_duration_seconds",
			Help:    "Duration in seconds from the pod's creation to the pod starting to run, with pulls and init containers",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 16),
		}),
	}
	registry.MustRegister(s.pods, s.podErrors, s.containers, s.containerErrors, s.duration, s.total)
	return s
}

// containerTypes are upstream's words for the lists of containers.
var containerTypes = map[podutil.Kind]string{
	podutil.Init: "init_container", podutil.Regular: "container",
	podutil.Ephemeral: "ephemeral_container",
}

// SandboxStarted implements podworker.Metrics.
func (s *starts) SandboxStarted(first bool, err error) {
	switch {
	case err != nil:
		s.podErrors.Inc()
	case first:
		s.pods.Inc()
	}
}

// ContainerStarted implements podworker.Metrics.
func (s *starts) ContainerStarted(kind podutil.Kind, reason string, err error) {
	if err != nil {
		s.containerErrors.WithLabelValues(containerTypes[kind], reason).Inc()
		return
	}
	s.containers.WithLabelValues(containerTypes[kind]).Inc()
}

// running notes how long a Pod took to run.
func (s *starts) running(sinceSeen, sinceCreated time.Duration) {
	s.duration.Observe(sinceSeen.Seconds())
	s.total.Observe(sinceCreated.Seconds())
}
