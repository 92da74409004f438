package main

import (
	"context"
	"errors"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/tracing"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/metrics"
	"github.com/berth-dev/berth/timeline/remote"
	"github.com/berth-dev/berth/timeline/traces"
)

// socketUsage is the help of --socket of `berth node` and `berth controllers`.
const socketUsage = "`path` of a unix socket that serves stages to 'berth explain --socket' and metrics to Prometheus (GET /metrics) (default: none)"

// timelineServer records what the components of this process do, and serves the records and their metrics on a socket.
type timelineServer struct {
	recorder *timeline.Recorder
	stages   *metrics.Stages
	socket   string                   // empty for none
	traces   *sdktrace.TracerProvider // nil if the environment requests no traces
}

// newTimelineServer returns a timelineServer. Traces are sent as the OTEL_* variables say.
func newTimelineServer(ctx context.Context, socket string) (*timelineServer, error) {
	r := &timelineServer{recorder: timeline.New(clock.RealClock{}, 0), stages: metrics.New(), socket: socket}
	if !tracing.Enabled(os.Getenv) {
		return r, nil
	}
	var err error
	r.traces, err = tracing.FromEnvironment(ctx, "berth", traces.IDs())
	return r, err
}

// tracerProvider returns the provider of spans, nil if there are no traces.
func (r *timelineServer) tracerProvider() trace.TracerProvider {
	if r.traces == nil {
		return nil
	}
	return r.traces
}

// exportTraces sends the stages of Pods as spans until ctx is done, and then what is left.
func (r *timelineServer) exportTraces(ctx context.Context) error {
	if r.traces == nil {
		return nil
	}
	err := traces.New(r.traces, nil).Start(ctx, r.recorder)
	return errors.Join(err, r.traces.Shutdown(context.WithoutCancel(ctx))) // bounded by OTEL_EXPORTER_OTLP_TIMEOUT
}

// run counts the stages, and serves the socket if there is one, until ctx is done. It also serves the gatherers' metrics.
func (r *timelineServer) run(ctx context.Context, gatherers ...prometheus.Gatherer) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("berth.run", "", func() error { return r.stages.Start(ctx, r.recorder) }))
	group.Go(contain.Func("berth.run", "", func() error { return r.exportTraces(ctx) }))
	if r.socket != "" {
		own := prometheus.NewRegistry()
		if err := own.Register(r.stages); err != nil {
			return err
		}
		listener, err := remote.Listen(r.socket)
		if err != nil {
			return err
		}
		group.Go(contain.Func("berth.run", "", func() error {
			return remote.Serve(ctx, listener, r.recorder, append(prometheus.Gatherers{own}, gatherers...))
		}))
	}
	return group.Wait()
}
