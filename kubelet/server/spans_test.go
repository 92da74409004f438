package server_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-dev/berth/kubelet/server"
)

// TestSpansOfRequests makes requests: the span of one that matches a path has its name, and a caller's own trace is no more
// than a link.
func TestSpansOfRequests(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	f := start(t, func(_ *server.Config, deps *server.Deps) {
		deps.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	})
	const trace = "0af7651916cd43dd8448eb211c80319c"
	code, _ := f.do(t, "admin", http.MethodGet, "/pods", "Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	require.Equal(t, http.StatusOK, code)
	code, _ = f.do(t, "", http.MethodGet, "/pods")
	require.Equal(t, http.StatusUnauthorized, code)
	f.stop()
	require.Len(t, recorder.Ended(), 2)
	span := recorder.Ended()[0]
	require.Contains(t, span.Name(), "/pods")
	require.NotEqual(t, trace, span.SpanContext().TraceID().String())
	require.Len(t, span.Links(), 1)
	require.Equal(t, trace, span.Links()[0].SpanContext.TraceID().String())
	require.Equal(t, "kubelet", recorder.Ended()[1].Name(), "it was refused before its path mattered")
}
