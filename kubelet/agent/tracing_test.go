package agent

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/ptr"
)

// TestTracesAreConfigured has an agent send its spans to a collector over OTLP/gRPC, at the latest when it is closed.
func TestTracesAreConfigured(t *testing.T) {
	called := make(chan string, 8)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	collector := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		called <- method
		return nil
	}))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = collector.Serve(listener) }()
	t.Cleanup(func() { collector.Stop(); <-ended })

	f := newFixture(t, func(deps *Deps, config *Config) {
		deps.TracerProvider = noop.NewTracerProvider() // the configuration comes before the environment
		config.Tracing = &tracingapi.TracingConfiguration{
			Endpoint: ptr.To(listener.Addr().String()), SamplingRatePerMillion: ptr.To[int32](1_000_000),
		}
	})
	_, span := f.agent.base.tracer().Start(t.Context(), "syncPod")
	span.End()
	require.NoError(t, f.agent.Close())
	require.Equal(t, "/opentelemetry.proto.collector.trace.v1.TraceService/Export", <-called)

	f = newFixture(t, func(*Deps, *Config) {})
	require.Nil(t, f.agent.base.tracer(), "off by default")
}
