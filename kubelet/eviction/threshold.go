package eviction

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/quantity"
)

// Value is an amount of a resource, or a fraction of its capacity.
type Value struct {
	// Amount counts if Fraction is 0.
	Amount   resource.Quantity
	Fraction float64
}

// of returns the amount, given the capacity.
func (v Value) of(capacity int64) int64 {
	if v.Fraction > 0 {
		return int64(v.Fraction * float64(capacity))
	}
	return v.Amount.Value()
}

// String returns the value as a configuration has it.
func (v Value) String() string {
	if v.Fraction > 0 {
		return strconv.FormatFloat(v.Fraction*100, 'f', -1, 64) + "%"
	}
	return v.Amount.String()
}

// Threshold says how much of a resource has to be available.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long a soft threshold may be met before Pods are evicted; 0 for a hard one.
	Grace time.Duration
	// MinReclaim is how much more than Value has to be available after Pods were evicted.
	MinReclaim Value
}

// hard reports whether Pods are evicted at once, with hardly any grace period.
func (t *Threshold) hard() bool { return t.Grace == 0 }

// Config are the settings of eviction, as KubeletConfiguration has them.
type Config struct {
	// Hard, Soft and MinimumReclaim are amounts or percentages by signal, SoftGracePeriod are durations. A nil Hard means
	// DefaultHard; an empty one means no hard thresholds.
	Hard, Soft, SoftGracePeriod, MinimumReclaim map[string]string
	// PressureTransitionPeriod is how long a condition of the Node outlasts its cause; 5 min if zero, not at all if negative.
	PressureTransitionPeriod time.Duration
	// MaxPodGracePeriod bounds the grace period, in seconds, of a Pod that a soft threshold evicts; a negative one does not.
	MaxPodGracePeriod int64
}

// DefaultPressureTransitionPeriod is that of Config.
const DefaultPressureTransitionPeriod = 5 * time.Minute

// DefaultHard returns the hard thresholds of Kubernetes.
func DefaultHard() map[string]string {
	return map[string]string{
		string(MemoryAvailable): "100Mi", string(NodeFsAvailable): "10%", string(NodeFsInodesFree): "5%",
		string(ImageFsAvailable): "15%", string(ImageFsInodesFree): "5%",
	}
}

// WithDefaults returns the settings with the defaults of what is left open.
func (c Config) WithDefaults() Config {
	if c.Hard == nil {
		c.Hard = DefaultHard()
	}
	c.PressureTransitionPeriod = cmp.Or(c.PressureTransitionPeriod, DefaultPressureTransitionPeriod)
	return c
}

// ParseThresholds returns the thresholds of the settings. The error names each field and signal that is wrong.
func ParseThresholds(c Config) ([]Threshold, error) {
	var errs []error
	read := func(field string, values map[string]string, one func(signal Signal, text string) error) {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			signal, text := Signal(name), values[name]
			err := fmt.Errorf("unknown signal: want one of %s", signalNames())
			if _, known := describe(signal); known {
				err = one(signal, text)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s=%s: %w", field, name, text, err))
			}
		}
	}
	grace, reclaim := map[Signal]time.Duration{}, map[Signal]Value{}
	read("evictionSoftGracePeriod", c.SoftGracePeriod, func(signal Signal, text string) error {
		period, err := time.ParseDuration(text)
		if err != nil || period < 0 {
			return errors.New("want a duration such as 1m30s")
		}
		grace[signal] = period
		return nil
	})
	read("evictionMinimumReclaim", c.MinimumReclaim, func(signal Signal, text string) (err error) {
		reclaim[signal], err = parseValue(text)
		return err
	})
	var thresholds []Threshold
	add := func(signal Signal, text string, grace time.Duration) error {
		if isNone(text) {
			return nil
		}
		value, err := parseValue(text)
		if err == nil && value.of(100) <= 0 && value.Fraction == 0 {
			err = errors.New("want more than 0; 0% is no threshold")
		}
		if err == nil {
			thresholds = append(thresholds, Threshold{Signal: signal, Value: value, Grace: grace, MinReclaim: reclaim[signal]})
		}
		return err
	}
	read("evictionHard", c.Hard, func(signal Signal, text string) error { return add(signal, text, 0) })
	read("evictionSoft", c.Soft, func(signal Signal, text string) error {
		period, ok := grace[signal]
		if !ok && !isNone(text) {
			return fmt.Errorf("a soft threshold needs a grace period: set evictionSoftGracePeriod of %s, too", signal)
		}
		return add(signal, text, period)
	})
	return thresholds, errors.Join(errs...)
}

// isNone reports whether the text is one of those by which a threshold is switched off.
func isNone(text string) bool { return text == "0%" || text == "100%" }

func signalNames() string {
	var names []string
	for _, signal := range []Signal{
		MemoryAvailable, AllocatableMemoryAvailable, NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree,
		ContainerFsAvailable, ContainerFsInodesFree, PIDAvailable,
	} {
		names = append(names, string(signal))
	}
	return strings.Join(names, ", ")
}

// parseValue reads an amount or a percentage.
func parseValue(text string) (Value, error) {
	if percentage, ok := strings.CutSuffix(text, "%"); ok {
		parsed, err := strconv.ParseFloat(percentage, 64)
		if err != nil || !(parsed >= 0 && parsed <= 100) {
			return Value{}, errors.New("want a percentage, 0% to 100%")
		}
		return Value{Fraction: parsed / 100}, nil
	}
	amount, err := quantity.Parse(text)
	if err != nil || amount.Sign() < 0 {
		return Value{}, errors.New("want an amount such as 100Mi, or a percentage")
	}
	return Value{Amount: amount}, nil
}

// WithAllocatable adds the hard thresholds of memory for the memory of all Pods together, where their cgroup has a limit.
func WithAllocatable(thresholds []Threshold) []Threshold {
	out := slices.Clone(thresholds)
	for _, t := range thresholds {
		if t.Signal == MemoryAvailable && t.hard() {
			t.Signal = AllocatableMemoryAvailable
			out = append(out, t)
		}
	}
	return out
}

// Reserved returns what the hard thresholds keep from Pods of the node's memory and ephemeral storage.
func Reserved(thresholds []Threshold, capacity corev1.ResourceList) corev1.ResourceList {
	reserved := corev1.ResourceList{}
	for i := range thresholds {
		t := &thresholds[i]
		name := t.Signal.resource()
		if t.hard() && (t.Signal == MemoryAvailable || t.Signal == NodeFsAvailable) {
			whole := capacity[name]
			reserved[name] = *t.Signal.quantity(t.Value.of(whole.Value()))
		}
	}
	return reserved
}
