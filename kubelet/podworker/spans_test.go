package podworker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-dev/berth/kubelet/config"
)

// TestSpansOfAPodsLife runs a Pod and deletes it: there are spans of its syncs, with upstream's names and attributes.
func TestSpansOfAPodsLife(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	f := newFixture(t)
	f.stop()
	f.tracer = provider.Tracer("test")
	f.start()
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	f.waitFor("gone", func() bool { return len(f.runtime.Running()) == 0 })
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	f.waitFor("all spans", func() bool {
		names := map[string]bool{}
		for _, span := range recorder.Ended() {
			names[span.Name()] = true
		}
		return names["syncPod"] && names["syncTerminatingPod"] && names["syncTerminatedPod"]
	})
	first := recorder.Ended()[0]
	for _, span := range recorder.Ended() {
		if span.StartTime().Before(first.StartTime()) {
			first = span
		}
	}
	require.Equal(t, "syncPod", first.Name())
	require.ElementsMatch(t, []attribute.KeyValue{
		attribute.String("k8s.pod.uid", string(p.UID)), attribute.String("k8s.pod", "ns/a"),
		attribute.String("k8s.pod.name", "a"), attribute.String("k8s.namespace.name", "ns"),
		attribute.String("k8s.pod.update_type", "create"),
	}, first.Attributes())
	f.stop()
	require.Len(t, recorder.Ended(), len(recorder.Started()), "each span ends")
}
