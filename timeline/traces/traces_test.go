package traces_test

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/tracing"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/traces"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryExporter is an exporter that keeps what it gets, beyond its shutdown.
type memoryExporter struct{ spans []sdktrace.ReadOnlySpan }

func (k *memoryExporter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	k.spans = append(k.spans, spans...)
	return nil
}

func (k *memoryExporter) Shutdown(context.Context) error { return nil }

const uid = "67b1a0c2-5d0e-4f7b-9d5c-0123456789ab"

// record runs a Pod's start past the tracer.
func record(t *testing.T, tracer *traces.Tracer) {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Unix(100, 0))
	recorder := timeline.New(clock, 0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tracer.Start(ctx, recorder) }()
	require.Eventually(t, func() bool { return recorder.Subscriptions() == 1 }, time.Minute, time.Millisecond)
	ref := timeline.Ref{Kind: "Pod", Namespace: "default", Name: "web", UID: uid}
	recorder.Mark(ref, "api", timeline.StageAccepted, "", nil)
	sandbox := recorder.Begin(ref, "kubelet", timeline.StageSandbox, "")
	clock.Step(3 * time.Second)
	sandbox.End(errors.New("no address left"))
	recorder.Mark(timeline.Ref{Kind: "Pod", Name: "static", UID: "no-uuid"}, "kubelet", timeline.StageSeen, "", nil)
	recorder.Mark(ref, "api", timeline.StageObserved, "", nil)
	named, _ := recorder.Record(uid)
	require.Equal(t, traces.ID(uid), named.Trace)
	static, found := recorder.Record("no-uuid")
	require.True(t, found)
	require.Empty(t, static.Trace)
	cancel()
	require.NoError(t, <-done)
}

// collector is a collector's service of traces, by OpenTelemetry's own protocol.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	received chan *collectorpb.ExportTraceServiceRequest
}

// Export implements TraceServiceServer.
func (c *collector) Export(_ context.Context, request *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.received <- request
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// TestACollectorReceivesTheStartOfAPod sends a start over OTLP as the environment says.
func TestACollectorReceivesTheStartOfAPod(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	service, server := &collector{received: make(chan *collectorpb.ExportTraceServiceRequest, 8)}, grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, service)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	defer func() { server.Stop(); <-ended }()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+listener.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	provider, err := tracing.FromEnvironment(t.Context(), "berth", traces.IDs())
	require.NoError(t, err)
	record(t, traces.New(provider, nil))
	require.NoError(t, provider.Shutdown(t.Context()))
	request := <-service.received
	require.Len(t, request.ResourceSpans, 1)
	require.Equal(t, "berth", request.ResourceSpans[0].Resource.Attributes[0].Value.GetStringValue())
	var names []string
	for _, span := range request.ResourceSpans[0].ScopeSpans[0].Spans {
		require.Equal(t, traces.ID(uid), hex.EncodeToString(span.TraceId))
		names = append(names, span.Name)
	}
	require.ElementsMatch(t, []string{timeline.StageAccepted, timeline.StageSandbox, timeline.StageObserved, "start of a pod"}, names)
	link := traces.Links(uid)
	require.Len(t, link, 1)
	require.Equal(t, traces.ID(uid), link[0].SpanContext.TraceID().String())
	require.Empty(t, traces.ID("of-a-static-pod"))
	require.Empty(t, traces.Links("of-a-static-pod"))
}

func TestOneTraceForEachPod(t *testing.T) {
	exporter := &memoryExporter{}
	provider, err := tracing.New(t.Context(), exporter, "berth", traces.IDs())
	require.NoError(t, err)
	record(t, traces.New(provider, nil))
	require.NoError(t, provider.Shutdown(t.Context()))
	names := make(map[string]sdktrace.ReadOnlySpan)
	for _, span := range exporter.spans {
		require.Equal(t, "67b1a0c25d0e4f7b9d5c0123456789ab", span.SpanContext().TraceID().String(), "the Pod's UID")
		names[span.Name()] = span
	}
	require.Len(t, names, 4)
	root := names["start of a pod"]
	require.False(t, root.Parent().IsValid())
	require.Equal(t, 3*time.Second, root.EndTime().Sub(root.StartTime()))
	sandbox := names[timeline.StageSandbox]
	require.Equal(t, root.SpanContext().SpanID(), sandbox.Parent().SpanID())
	require.Equal(t, "no address left", sandbox.Status().Description)
}
