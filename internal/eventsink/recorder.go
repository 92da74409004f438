package eventsink

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/contain"
)

// StartRecorder returns a recorder whose events a Sink writes, and a function that ends both: it writes the events that
// are left, for Config.DrainTimeout at most, and must be called. The end of ctx does not end the recorder, so that what
// is recorded during a shutdown is written, too.
func StartRecorder(
	ctx context.Context, deps Deps, config Config, source corev1.EventSource,
) (recorder record.EventRecorder, stop func(), err error) {
	sink, err := New(deps, config)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- contain.Do("eventsink.StartRecorder", "", func() error { return sink.Start(ctx) }) }()
	broadcaster := record.NewBroadcaster(record.WithContext(ctx),
		record.WithCorrelatorOptions(record.CorrelatorOptions{Clock: sink.deps.Clock}))
	broadcaster.StartRecordingToSink(sink)
	return broadcaster.NewRecorder(scheme.Scheme, source), func() {
		broadcaster.Shutdown()
		cancel()
		<-done
	}, nil
}
