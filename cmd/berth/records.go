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

// socketFlag is what `berth node` and `berth controllers` say about their socket.
const socketFlag = "`path` of a unix socket on which 'berth explain --socket' and Prometheus (GET /metrics) may ask what was done (default: none)"

// records is what a process that runs parts of Berth by themselves has done, and where it can be asked for that.
type records struct {
	rec    *timeline.Recorder
	stages *metrics.Stages
	socket string // empty for none
}

func newRecords(socket string) *records {
	return &records{rec: timeline.New(clock.RealClock{}, 0), stages: metrics.New(), socket: socket}
}

// run counts the stages, and answers on the socket if there is one, until ctx ends. The gatherers are served there too.
func (r *records) run(ctx context.Context, gatherers ...prometheus.Gatherer) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.stages.Start(ctx, r.rec) })
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
			return remote.Serve(ctx, listener, r.rec, append(prometheus.Gatherers{own}, gatherers...))
		})
	}
	return group.Wait()
}
