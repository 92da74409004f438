// Package traces sends timeline's stages of Pods to an OpenTelemetry collector: one trace for each Pod, whose ID is the
// Pod's UID, so that a trace can be found from the Pod without a search.
package traces

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/timeline"
)

// bufferSize is how many changes wait for the SDK, which only queues them.
const bufferSize = 4096

// Tracer turns stages into spans. Start may be called once.
type Tracer struct {
	provider *sdktrace.TracerProvider
	logger   *slog.Logger
}

// New returns a Tracer that sends its spans to the provider, which must have been made with IDs. The logger may be nil.
func New(provider *sdktrace.TracerProvider, logger *slog.Logger) *Tracer {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Tracer{provider: provider, logger: logger}
}

// IDs is the option of the provider of a Tracer.
func IDs() sdktrace.TracerProviderOption { return sdktrace.WithIDGenerator(idGenerator{}) }

// Start sends what recorder records of Pods until ctx ends, then what is still queued. The records name their traces from then on.
// The provider can be used further.
func (t *Tracer) Start(ctx context.Context, recorder *timeline.Recorder) error {
	recorder.NameTraces(traceOf)
	sub := recorder.Subscribe(bufferSize)
	defer sub.Stop()
	tracer := t.provider.Tracer("github.com/berth-dev/berth/timeline")
	for ended := false; !ended; {
		select {
		case <-sub.C():
		case <-ctx.Done():
			ended = true
		}
		for _, change := range sub.Drain() {
			send(ctx, tracer, recorder, change)
		}
	}
	if lost := sub.Dropped(); lost > 0 {
		t.logger.Warn("stages came too fast to be traced", "lost", lost)
	}
	if err := t.provider.ForceFlush(context.WithoutCancel(ctx)); err != nil { // bounded by OTEL_EXPORTER_OTLP_TIMEOUT
		t.logger.Warn("cannot send the last traces", "error", err)
	}
	return nil
}

// traceOf returns the ID of the trace that has the object's stages; empty if there is none.
func traceOf(ref timeline.Ref) string {
	if ref.Kind != podKind {
		return ""
	}
	return ID(ref.UID)
}

// podKind is the kind of the objects that have traces.
const podKind = "Pod"

// send sends an ended stage as a span; for the stage that ends a start, it also sends the span of the whole start, which is
// the parent of all.
func send(ctx context.Context, tracer trace.Tracer, recorder *timeline.Recorder, change timeline.Change) {
	traceID, rootID, err := idsOf(change.Ref.UID)
	if err != nil || change.Ref.Kind != podKind || !change.Stage.Done() {
		return // a static Pod's UID is no UUID, and has no trace
	}
	stage := change.Stage
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: rootID, TraceFlags: trace.FlagsSampled, Remote: true})
	_, span := tracer.Start(trace.ContextWithRemoteSpanContext(ctx, parent), stage.Name, trace.WithTimestamp(stage.Start),
		trace.WithAttributes(attributes(change)...))
	if stage.Error != "" {
		span.SetStatus(codes.Error, stage.Error)
	}
	span.End(trace.WithTimestamp(stage.End))
	if stage.Name != timeline.StageObserved || stage.Attempt > 1 {
		return
	}
	if record, ok := recorder.Record(change.Ref.UID); ok && len(record.Stages) > 0 {
		ctx := context.WithValue(ctx, parentKey{}, parent)
		_, root := tracer.Start(ctx, "start of a pod", trace.WithNewRoot(), trace.WithTimestamp(record.Stages[0].Start),
			trace.WithAttributes(podAttributes(change.Ref)...))
		root.End(trace.WithTimestamp(stage.End))
	}
}

// ID returns the ID of the trace of a Pod's start; it is empty for a Pod whose UID is no UUID, as that of a static Pod.
func ID(uid types.UID) string {
	traceID, _, err := idsOf(uid)
	if err != nil {
		return ""
	}
	return traceID.String()
}

// Links returns a link to the span of a Pod's start, for spans of other traces that belong to the Pod; nil if it has no trace.
func Links(uid types.UID) []trace.Link {
	traceID, rootID, err := idsOf(uid)
	if err != nil {
		return nil
	}
	return []trace.Link{{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: rootID, TraceFlags: trace.FlagsSampled, Remote: true})}}
}

func podAttributes(ref timeline.Ref) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("k8s.namespace.name", ref.Namespace), attribute.String("k8s.pod.name", ref.Name),
		attribute.String("k8s.pod.uid", string(ref.UID)),
	}
}

func attributes(change timeline.Change) []attribute.KeyValue {
	stage := change.Stage
	list := append(podAttributes(change.Ref), attribute.String("berth.owner", stage.Owner), attribute.Int("berth.attempt", stage.Attempt))
	if stage.Subject != "" {
		list = append(list, attribute.String("berth.subject", stage.Subject))
	}
	if stage.WaitMs > 0 {
		list = append(list, attribute.Float64("berth.wait_ms", stage.WaitMs))
	}
	if stage.Cause != nil {
		list = append(list, attribute.String("berth.cause", stage.Cause.Kind+"/"+stage.Cause.Name))
	}
	return list
}

// idsOf derives the IDs of a Pod's trace and of its root span from the UID: the trace's is the UID, the span's its end.
func idsOf(uid types.UID) (trace.TraceID, trace.SpanID, error) {
	var traceID trace.TraceID
	var spanID trace.SpanID
	raw, err := hex.DecodeString(strings.ReplaceAll(string(uid), "-", ""))
	if err != nil {
		return traceID, spanID, err
	}
	if len(raw) != len(traceID) {
		return traceID, spanID, errors.New("not a UUID")
	}
	copy(traceID[:], raw)
	copy(spanID[:], raw[len(traceID)-len(spanID):])
	return traceID, spanID, nil
}

type parentKey struct{}

// idGenerator returns the IDs that the context carries for a root span, and a random ID for every other span.
type idGenerator struct{}

var _ sdktrace.IDGenerator = idGenerator{}

// NewIDs implements sdktrace.IDGenerator.
func (g idGenerator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if given, ok := ctx.Value(parentKey{}).(trace.SpanContext); ok {
		return given.TraceID(), given.SpanID()
	}
	var traceID trace.TraceID
	_, _ = rand.Read(traceID[:]) // it never fails
	return traceID, g.NewSpanID(ctx, traceID)
}

// NewSpanID implements sdktrace.IDGenerator.
func (idGenerator) NewSpanID(context.Context, trace.TraceID) trace.SpanID {
	var spanID trace.SpanID
	_, _ = rand.Read(spanID[:]) // it never fails
	return spanID
}
