package csi

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

// CallMetrics is the metric of calls of drivers, under upstream's name. It is safe for concurrent use.
type CallMetrics struct {
	*prometheus.HistogramVec
	clock clock.PassiveClock
}

var _ prometheus.Collector = (*CallMetrics)(nil)

// NewCallMetrics makes a Calls that has seen none; a nil clock is the real one.
func NewCallMetrics(clk clock.PassiveClock) *CallMetrics {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &CallMetrics{clock: clk, HistogramVec: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "csi_operations_seconds", Help: "Length of calls of CSI drivers, by method and by what came of them.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"})}
}

// DialOption has the calls of a driver measured, when it is given to Dial.
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

// observe notes one call. Volumes of the plugins that Kubernetes once had in its own tree are not used here, so none is
// migrated.
func (c *CallMetrics) observe(driver, method string, took time.Duration, err error) {
	c.WithLabelValues(driver, method, status.Code(err).String(), "false").Observe(took.Seconds())
}
