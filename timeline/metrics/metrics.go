// Package metrics counts timeline's stages for Prometheus: a histogram per stage, from the same record that explain and the
// traces read.
package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/timeline"
)

// bufferSize is how many changes wait while a scrape holds the histograms' locks, which is never long.
const bufferSize = 4096

// Stages is a prometheus.Collector of
//   - berth_stage_duration_seconds{kind,stage,owner,result}: how long ended stages took, a mark taking no time;
//   - berth_stage_wait_seconds{stage,owner}: how much of that was spent in queues and rate limiters;
//   - berth_stages_lost_total: changes that were not counted because there were too many at once.
//
// It is safe for concurrent use.
type Stages struct {
	duration *prometheus.HistogramVec
	wait     *prometheus.HistogramVec
	dropped  prometheus.Counter
}

var _ prometheus.Collector = (*Stages)(nil)

// New returns a collector that counts nothing before Start.
func New() *Stages {
	buckets := prometheus.ExponentialBuckets(0.001, 2, 18) // 1 ms to 131 s
	return &Stages{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_stage_duration_seconds", Help: "How long a stage of an object's way took.", Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
		}, []string{"kind", "stage", "owner", "result"}),
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_stage_wait_seconds", Help: "How long a stage waited in a queue or for a rate limiter.", Buckets: buckets,
		}, []string{"stage", "owner"}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_stages_lost_total", Help: "Stages that came too fast to be counted.",
		}),
	}
}

// Describe implements prometheus.Collector.
func (s *Stages) Describe(out chan<- *prometheus.Desc) {
	s.duration.Describe(out)
	s.wait.Describe(out)
	s.dropped.Describe(out)
}

// Collect implements prometheus.Collector.
func (s *Stages) Collect(out chan<- prometheus.Metric) {
	s.duration.Collect(out)
	s.wait.Collect(out)
	s.dropped.Collect(out)
}

// Start counts what rec records until ctx ends.
func (s *Stages) Start(ctx context.Context, recorder *timeline.Recorder) error {
	sub := recorder.Subscribe(bufferSize)
	defer sub.Stop()
	dropped := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sub.C():
			for _, change := range sub.Drain() {
				s.count(change)
			}
			if now := sub.Dropped(); now > dropped {
				s.dropped.Add(float64(now - dropped))
				dropped = now
			}
		}
	}
}

// count counts an ended stage. Subjects are names of users' objects and are not used as labels.
func (s *Stages) count(change timeline.Change) {
	stage := change.Stage
	if !stage.Done() {
		return
	}
	result := "success"
	if stage.Error != "" {
		result = "error"
	}
	s.duration.WithLabelValues(change.Ref.Kind, stage.Name, stage.Owner, result).Observe(stage.End.Sub(stage.Start).Seconds())
	if stage.WaitMs > 0 {
		s.wait.WithLabelValues(stage.Name, stage.Owner).Observe(stage.WaitMs / 1000)
	}
}
