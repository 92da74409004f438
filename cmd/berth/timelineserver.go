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

// socketUsage is what `berth node` and `berth controllers` say about their socket.
const socketUsage = "`path` of a unix socket on which 'berth explain --socket' and Prometheus (GET /metrics) may ask what was done (default: none)"

// timelineServer is what a process that runs parts of Berth by themselves has done, and where it can be asked for that.
type timelineServer struct {
	recorder *timeline.Recorder
	stages   *metrics.Stages
	socket   string // empty for none
}

func newTimelineServer(socket string) *timelineServer {
	return &timelineServer{recorder: timeline.New(clock.RealClock{}, 0), stages: metrics.New(), socket: socket}
}

// run counts the stages, and answers on the socket if there is one, until ctx ends. The gatherers are served there too.
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
