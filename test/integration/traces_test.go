//go:build integration

package integration

import (
	"context"
	"encoding/hex"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/traces"
)

// collector is an OpenTelemetry collector's service of traces. It remembers the names of spans by their trace, and by the traces
// that they link to.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer

	mu            sync.Mutex // guards both
	spans, linked map[string][]string
}

// startCollector starts a collector until the end of the test, and has what the test starts send its traces there.
func startCollector(t *testing.T) *collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c, server := &collector{spans: make(map[string][]string), linked: make(map[string][]string)}, grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+listener.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	return c
}

// Export implements TraceServiceServer.
func (c *collector) Export(_ context.Context, request *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				trace := hex.EncodeToString(span.TraceId)
				c.spans[trace] = append(c.spans[trace], span.Name)
				for _, link := range span.Links {
					trace := hex.EncodeToString(link.TraceId)
					c.linked[trace] = append(c.linked[trace], span.Name)
				}
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// of returns the names of the spans of a Pod's trace, and of those that link to it.
func (c *collector) of(pod types.UID) (spans, linked []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans[traces.ID(pod)]), slices.Clone(c.linked[traces.ID(pod)])
}

// checkTrace waits for the trace of a Pod that has started: stages of all components, the whole start, and the kubelet's syncs.
func (c *cluster) checkTrace(t *testing.T, collector *collector, pod types.UID) {
	t.Helper()
	var spans, linked []string
	wanted := []string{"start of a pod", timeline.StageAccepted, timeline.StageScheduled, timeline.StageSandbox, timeline.StageStart, timeline.StageReady}
	require.NoError(t, c.poll(func(context.Context) bool {
		spans, linked = collector.of(pod)
		return slices.Contains(linked, "syncPod") && !slices.ContainsFunc(wanted, func(name string) bool { return !slices.Contains(spans, name) })
	}), "spans %v, and links from %v", spans, linked)
}
