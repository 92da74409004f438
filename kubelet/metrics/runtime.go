package metrics

import (
	"context"
	"time"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// Runtime holds the metrics of calls to the container runtime.
type Runtime struct {
	total, errors *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	// RunPodSandbox has its own, by runtime handler.
	sandboxErrors   *prometheus.CounterVec
	sandboxDuration *prometheus.HistogramVec
}

// NewRuntime registers the metrics of calls to the container runtime.
func NewRuntime(registry prometheus.Registerer) *Runtime {
	labels := []string{"operation_type"}
	m := &Runtime{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_total", Help: "Calls to the container runtime, by method.",
		}, labels),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total", Help: "Failed calls to the container runtime, by method.",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Help: "Duration of calls to the container runtime, by method.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, labels),
		sandboxErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_run_podsandbox_errors_total", Help: "Failed RunPodSandbox calls.",
		}, []string{"runtime_handler"}),
		sandboxDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_run_podsandbox_duration_seconds", Help: "Duration of RunPodSandbox calls.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
		}, []string{"runtime_handler"}),
	}
	registry.MustRegister(m.total, m.errors, m.duration, m.sandboxErrors, m.sandboxDuration)
	return m
}

// Observe records one call.
func (m *Runtime) Observe(method string, took time.Duration, err error) {
	m.total.WithLabelValues(method).Inc()
	m.duration.WithLabelValues(method).Observe(took.Seconds())
	if err != nil {
		m.errors.WithLabelValues(method).Inc()
	}
}

// InstrumentRuntime returns a runtime that records each RunPodSandbox call by its runtime handler; the default handler
// has an empty name.
func InstrumentRuntime(runtime container.Runtime, metrics *Runtime, clock clock.PassiveClock) container.Runtime {
	return &instrumentedRuntime{runtime, metrics, clock}
}

type instrumentedRuntime struct {
	container.Runtime
	metrics *Runtime
	clock   clock.PassiveClock
}

// RunPodSandbox implements container.Runtime.
func (r *instrumentedRuntime) RunPodSandbox(ctx context.Context, in *runtimeapi.RunPodSandboxRequest, opts ...grpc.CallOption,
) (*runtimeapi.RunPodSandboxResponse, error) {
	start := r.clock.Now()
	resp, err := r.Runtime.RunPodSandbox(ctx, in, opts...)
	r.metrics.sandboxDuration.WithLabelValues(in.RuntimeHandler).Observe(r.clock.Since(start).Seconds())
	if err != nil {
		r.metrics.sandboxErrors.WithLabelValues(in.RuntimeHandler).Inc()
	}
	return resp, err
}
