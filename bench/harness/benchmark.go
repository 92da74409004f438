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

// Metric is one quantity that a sample measures.
type Metric struct {
	// Name identifies the metric within its case and is shown to readers.
	Name string `json:"name"`
	// Unit is what the values count: "ms", "s", "MiB", "B/key", "/s", "ns".
	Unit string `json:"unit"`
	// Better is the direction of good values.
	Better Direction `json:"better"`
	// Optional is set if some variants have no value, such as the baseline, which has no kubelet.
	Optional bool `json:"optional,omitempty"`
}

// Target is a goal of the project: the ratio that the medians of Berth and of another variant must not exceed.
type Target struct {
	// Metric names the metric compared.
	Metric string `json:"metric"`
	// Against names the variant that Berth is compared with. If it is empty, Ratio is an absolute bound.
	Against string `json:"against,omitempty"`
	// Ratio bounds Berth's value divided by the other one: from above if lower is better, from below if higher is.
	Ratio float64 `json:"ratio"`
	// Of names the variant of Berth's that is judged; empty for the first.
	Of string `json:"of,omitempty"`
}

// Variant is one implementation of a case's work.
type Variant struct {
	// Name is shown to readers.
	Name string
	// Run does the work once, in a process of its own, and sets every metric of the case in sample. It should return
	// soon after ctx ends.
	Run func(ctx context.Context, sample *Sample) error
}

// Case is one piece of work that all its variants do.
type Case struct {
	// Name identifies the case within its benchmark and is shown to readers.
	Name string
	// Metrics are what each sample measures, the most important first.
	Metrics []Metric
	// Variants are the implementations, Berth's first.
	Variants []Variant
	// Targets are what Berth's has to reach.
	Targets []Target
	// Rounds is how many samples each variant gets, in place of the number on the command line.
	Rounds int
	// Timeout bounds one sample. The default is 5 minutes.
	Timeout time.Duration
	// Scale is the position of the case on Benchmark.Axis.
	Scale float64
}

// Benchmark is a group of cases with one purpose.
type Benchmark struct {
	// Name is what the command line calls it.
	Name string
	// Title and About introduce it in the report; About describes the work and how it is measured.
	Title, About string
	// Axis is what Case.Scale counts, if the cases differ in scale only.
	Axis string
	// Missing returns why the benchmark cannot run here, such as a binary that is not built. Nil or an empty result
	// means that it can.
	Missing func(Paths) string
	// Setup prepares what all samples share, such as a control plane. Nil means nothing.
	Setup func(context.Context, Paths) (*Environment, error)
	// Cases are the pieces of work.
	Cases []Case
	// Budget is how long the benchmark takes on an idle machine with the default number of rounds. It is more than 0: a
	// run of limited time is divided in this proportion.
	Budget time.Duration
}

// Paths are the directories of a benchmark.
type Paths struct {
	// Bin is the directory with Berth's binaries.
	Bin string
	// Dir is an empty directory for the benchmark's own files, deleted afterwards.
	Dir string
}

// Environment is what Setup has prepared.
type Environment struct {
	// Env is set in the environment of each sample's process.
	Env map[string]string
	// Versions are those of what else is measured, such as the container runtime.
	Versions map[string]string
	// Stop removes it. It may be nil.
	Stop func() error
}

// Sample collects the results of one run.
type Sample struct {
	// Paths are the directories of the benchmark.
	Paths Paths
	// Round counts the rounds from 0. Names derived from it distinguish the samples.
	Round int

	values map[string]float64
	series map[string][]float64
}

// Set sets the value of a metric.
func (s *Sample) Set(metric string, value float64) {
	if s.values == nil {
		s.values = make(map[string]float64)
	}
	s.values[metric] = value
}

// Keep stores all single values of a metric, such as the latency of each Pod, in the order they were taken. They
// are written to the data file; the report draws their distribution.
func (s *Sample) Keep(metric string, values []float64) {
	if s.series == nil {
		s.series = make(map[string][]float64)
	}
	s.series[metric] = values
}

// check returns an error for a metric that was not set, or set but not declared.
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
