package tracing_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// methods is a gRPC server that reports the methods that are called.
func methods(t *testing.T) (address string, called <-chan string) {
	t.Helper()
	calls := make(chan string, 8)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		calls <- method
		return nil
	}))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	return listener.Addr().String(), calls
}

const exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

func TestEnvironmentSaysWhere(t *testing.T) {
	paths := make(chan string, 8)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { paths <- r.URL.Path }))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	provider, err := tracing.FromEnvironment(t.Context(), "berth")
	require.NoError(t, err)
	_, span := provider.Tracer("test").Start(t.Context(), "work")
	span.End()
	require.NoError(t, provider.Shutdown(t.Context()))
	require.Equal(t, "/v1/traces", <-paths)
}

func TestEnvironmentSaysHow(t *testing.T) {
	address, called := methods(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+address)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	provider, err := tracing.FromEnvironment(t.Context(), "berth")
	require.NoError(t, err)
	_, span := provider.Tracer("test").Start(t.Context(), "work")
	span.End()
	_ = provider.Shutdown(t.Context()) // the server's response is none
	require.Equal(t, exportMethod, <-called)

	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke")
	_, err = tracing.FromEnvironment(t.Context(), "berth")
	require.ErrorContains(t, err, `"smoke": want grpc or http/protobuf`)
}

func TestConfigurationSaysWhereAndHowOften(t *testing.T) {
	address, called := methods(t)
	for rate, sampled := range map[int32]bool{0: false, 1_000_000: true} {
		provider, err := tracing.FromConfig(t.Context(), &tracingapi.TracingConfiguration{
			Endpoint: &address, SamplingRatePerMillion: ptr.To(rate),
		}, "kubelet", "host")
		require.NoError(t, err)
		_, span := provider.Tracer("test").Start(t.Context(), "work")
		require.Equal(t, sampled, span.IsRecording())
		span.End()
		_ = provider.Shutdown(t.Context())
	}
	require.Equal(t, exportMethod, <-called)
}

func TestEnabled(t *testing.T) {
	for _, test := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{}, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, true},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "otlp"}, true},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"}, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, false},
	} {
		require.Equal(t, test.want, tracing.Enabled(func(name string) string { return test.env[name] }), test.env)
	}
}
