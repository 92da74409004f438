package podworker

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/berth-dev/berth/timeline/traces"
)

// syncSpan is the span of one sync of a Pod. It ends when the sync and all operations that it has started have ended.
type syncSpan struct {
	span trace.Span
	open atomic.Int32
}

type syncSpanKey struct{}

// release ends the span with the last of those that hold it. A nil span does nothing.
func (s *syncSpan) release() {
	if s != nil && s.open.Add(-1) == 0 {
		s.span.End()
	}
}

// holdSyncSpan returns the span that ctx belongs to, which the caller releases; nil if there is none.
func holdSyncSpan(ctx context.Context) *syncSpan {
	s, _ := ctx.Value(syncSpanKey{}).(*syncSpan)
	if s != nil {
		s.open.Add(1)
	}
	return s
}

// spanNames are the names of upstream's spans.
var spanNames = map[state]string{syncing: "syncPod", terminating: "syncTerminatingPod", terminated: "syncTerminatedPod"}

// startSpan starts the span of a sync, which the caller releases. The calls to the runtime become its children. It is the root of a
// trace, as upstream's is, with a link to the trace of the Pod's start.
func (w *worker) startSpan(ctx context.Context) (context.Context, *syncSpan) {
	if w.m.deps.Tracer == nil || w.pod == nil {
		return ctx, nil
	}
	list := []attribute.KeyValue{
		attribute.String("k8s.pod.uid", string(w.uid)), attribute.String("k8s.pod", w.pod.Namespace+"/"+w.pod.Name),
		attribute.String("k8s.pod.name", w.pod.Name), attribute.String("k8s.namespace.name", w.pod.Namespace),
	}
	if w.state == syncing {
		list = append(list, attribute.String("k8s.pod.update_type", w.updateType()))
	}
	ctx, span := w.m.deps.Tracer.Start(ctx, spanNames[w.state], trace.WithAttributes(list...), trace.WithLinks(traces.Links(w.uid)...))
	if !span.IsRecording() {
		return ctx, nil
	}
	s := &syncSpan{span: span}
	s.open.Store(1)
	return context.WithValue(ctx, syncSpanKey{}, s), s
}

// updateType returns why the Pod is synced, by upstream's names.
func (w *worker) updateType() string {
	switch {
	case !w.reported:
		return "create"
	case w.updated:
		return "update"
	default:
		return "sync"
	}
}

// startGCSpan starts the span of the removal of containers that are not needed any more.
func (w *worker) startGCSpan(ctx context.Context) (context.Context, trace.Span) {
	if w.m.deps.Tracer == nil {
		return ctx, noop.Span{}
	}
	return w.m.deps.Tracer.Start(ctx, "Containers/GarbageCollect")
}
