package csi

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

// CallMetrics is the metric csi_operations_seconds: the duration of calls of CSI drivers. It is safe for concurrent
// use.
type CallMetrics struct {
	*prometheus.HistogramVec
	clock clock.PassiveClock
}

var _ prometheus.Collector = (*CallMetrics)(nil)

// NewCallMetrics returns a CallMetrics without observations.
func NewCallMetrics(clock clock.PassiveClock) *CallMetrics {
	return &CallMetrics{clock: clock, HistogramVec: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "csi_operations_seconds", Help: "Duration of calls of CSI drivers, by driver, method and gRPC status code.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"})}
}

// DialOption makes Dial measure the calls of a driver.
func (c *CallMetrics) DialOption(driver string) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn,
		call grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		start := c.clock.Now()
		err := call(ctx, method, in, out, conn, opts...)
		c.observe(driver, method, c.clock.Since(start), err)
		return err
	})
}

// observe records one call. Berth has no in-tree plugins, so the label migrated is always false.
func (c *CallMetrics) observe(driver, method string, took time.Duration, err error) {
	c.WithLabelValues(driver, method, status.Code(err).String(), "false").Observe(took.Seconds())
}
