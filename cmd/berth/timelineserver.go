package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/metrics"
	"github.com/berth-dev/berth/timeline/remote"
)

// socketUsage is the help of --socket of `berth node` and `berth controllers`.
const socketUsage = "`path` of a unix socket that serves stages to 'berth explain --socket' and metrics to Prometheus (GET /metrics) (default: none)"

// timelineServer records what the components of this process do, and serves the records and their metrics on a socket.
type timelineServer struct {
	recorder *timeline.Recorder
	stages   *metrics.Stages
	socket   string // empty for none
}

func newTimelineServer(socket string) *timelineServer {
	return &timelineServer{recorder: timeline.New(clock.RealClock{}, 0), stages: metrics.New(), socket: socket}
}

// run counts the stages, and serves the socket if there is one, until ctx is done. It also serves the gatherers' metrics.
func (r *timelineServer) run(ctx context.Context, gatherers ...prometheus.Gatherer) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.stages.Start(ctx, r.recorder) })
	if r.socket != "" {
		own := prometheus.NewRegistry()
		if err := own.Register(r.stages); err != nil {
			return err
		}
		listener, err := remote.Listen(r.socket)
		if err != nil {
			return err
		}
		group.Go(func() error {
			return remote.Serve(ctx, listener, r.recorder, append(prometheus.Gatherers{own}, gatherers...))
		})
	}
	return group.Wait()
}
