package harness

import (
	"context"
	"fmt"
	"time"
)

// Direction says which values of a metric are good.
type Direction string

// The directions of a metric.
const (
	Lower  Direction = "lower"
	Higher Direction = "higher"
)

// Metric is one quantity that a sample yields.
type Metric struct {
	// Name identifies the metric within its case and is shown to readers.
	Name string `json:"name"`
	// Unit is what the values count: "ms", "s", "MiB", "B/key", "/s", "ns".
	Unit string `json:"unit"`
	// Better says which values are good.
	Better Direction `json:"better"`
	// Optional is set if some variants have nothing to give here, such as the floor that has no kubelet.
	Optional bool `json:"optional,omitempty"`
}

// Target is what the project asks of itself: the ratio that ours and another variant's medians must keep.
type Target struct {
	// Metric names the metric compared.
	Metric string `json:"metric"`
	// Against names the variant that ours is compared with. Empty means no other: Ratio is an absolute bound.
	Against string `json:"against,omitempty"`
	// Ratio bounds ours divided by the other's: from above if lower is better, from below if higher is.
	Ratio float64 `json:"ratio"`
}

// Variant is one implementation of a case's work.
type Variant struct {
	// Name is shown to readers.
	Name string
	// Run does the work once, in a process of its own, and gives every metric of the case to sample. It should return
	// soon after ctx ends.
	Run func(ctx context.Context, sample *Sample) error
}

// Case is one piece of work that all its variants do.
type Case struct {
	// Name identifies the case within its benchmark and is shown to readers.
	Name string
	// Metrics are what each sample yields, the most important first.
	Metrics []Metric
	// Variants are the implementations, ours first.
	Variants []Variant
	// Targets are what ours has to reach.
	Targets []Target
	// Rounds is how many samples each variant gives, if not what the command line says.
	Rounds int
	// Timeout bounds one sample. The default is 5 minutes.
	Timeout time.Duration
	// Scale is the place of the case on the axis of Benchmark.Axis.
	Scale float64
}

// Benchmark is a group of cases with one purpose.
type Benchmark struct {
	// Name is what the command line calls it.
	Name string
	// Title and About introduce it in the report; About says what is done and how it is measured.
	Title, About string
	// Axis names what Case.Scale counts, if the cases differ in scale only.
	Axis string
	// Missing tells why the benchmark cannot be run here, such as a binary that is not built. Nil or an empty answer
	// means that it can.
	Missing func(Paths) string
	// Setup prepares what all samples share, such as a control plane. Nil means nothing.
	Setup func(context.Context, Paths) (*Environment, error)
	// Cases are the pieces of work.
	Cases []Case
	// Budget is how long the benchmark should take on a machine that does nothing else, with the default number of
	// rounds. It is more than 0: a run of limited time is shared out in this proportion.
	Budget time.Duration
}

// Paths is where a benchmark runs.
type Paths struct {
	// Bin is the directory with Berth's binaries.
	Bin string
	// Dir is an empty directory for the benchmark's own files, deleted afterwards.
	Dir string
}

// Environment is what Setup made.
type Environment struct {
	// Env is set in the environment of each sample's process.
	Env map[string]string
	// Versions name what else is measured there, such as the container runtime.
	Versions map[string]string
	// Stop takes the place down. It may be nil.
	Stop func() error
}

// Sample collects what one run yields.
type Sample struct {
	// Paths is where the sample is taken.
	Paths Paths
	// Round counts the rounds from 0. Names derived from it keep the samples apart.
	Round int

	values map[string]float64
	series map[string][]float64
}

// Set gives the value of a metric.
func (s *Sample) Set(metric string, value float64) {
	if s.values == nil {
		s.values = make(map[string]float64)
	}
	s.values[metric] = value
}

// Keep stores all single values behind a metric, such as the latency of each Pod, in the order they were taken. They
// are written to the data file; the report draws their distribution.
func (s *Sample) Keep(metric string, values []float64) {
	if s.series == nil {
		s.series = make(map[string][]float64)
	}
	s.series[metric] = values
}

// check reports a metric that was not given, or given but not declared.
func (s *Sample) check(metrics []Metric) error {
	declared := make(map[string]bool, len(metrics))
	for _, m := range metrics {
		declared[m.Name] = true
		if _, ok := s.values[m.Name]; !ok && !m.Optional {
			return fmt.Errorf("metric %q was not set", m.Name)
		}
	}
	for name := range s.values {
		if !declared[name] {
			return fmt.Errorf("metric %q is not one of the case", name)
		}
	}
	return nil
}
