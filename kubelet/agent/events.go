package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/eventsink"
)

// eventDebounce is how long the first event after a pause waits, so that its write takes no time from the Pod that starts.
// It is below the second that events count in.
const eventDebounce = 500 * time.Millisecond

// eventRecorder writes events to the API server while it is started, and drops them at other times: a constructor starts
// nothing.
type eventRecorder struct {
	deps    eventsink.Deps
	source  corev1.EventSource
	limit   EventConfig
	started atomic.Pointer[record.EventRecorder]
}

var _ record.EventRecorder = (*eventRecorder)(nil)

// start writes events until the returned function is called, which writes those that are left.
func (r *eventRecorder) start(ctx context.Context) (stop func(), err error) {
	recorder, stopSink, err := eventsink.StartRecorder(ctx, r.deps, eventsink.Config{
		Debounce: eventDebounce, QPS: r.limit.QPS, Burst: r.limit.Burst,
	}, r.source)
	if err != nil {
		return nil, fmt.Errorf("start writing events: %w", err)
	}
	r.started.Store(&recorder)
	return func() {
		r.started.Store(nil)
		stopSink()
	}, nil
}

// Event implements record.EventRecorder.
func (r *eventRecorder) Event(object runtime.Object, kind, reason, message string) {
	if recorder := r.started.Load(); recorder != nil {
		(*recorder).Event(object, kind, reason, message)
	}
}

// Eventf implements record.EventRecorder.
func (r *eventRecorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf implements record.EventRecorder.
func (r *eventRecorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, kind, reason,
	format string, args ...any,
) {
	if recorder := r.started.Load(); recorder != nil {
		(*recorder).AnnotatedEventf(object, annotations, kind, reason, format, args...)
	}
}
