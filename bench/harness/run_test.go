package harness_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/bench/harness"
)

// TestMain makes this test's own program the one that takes samples.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == harness.ChildFlag {
		if err := harness.Child(context.Background(), []harness.Benchmark{benchmark()}, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// benchmark has one variant of each outcome; a sample has the process ID that took it.
func benchmark() harness.Benchmark {
	run := func(values ...string) func(context.Context, *harness.Sample) error {
		return func(_ context.Context, s *harness.Sample) error {
			for _, name := range values {
				s.Set(name, float64(os.Getpid()))
			}
			s.Keep("series", []float64{float64(s.Round)})
			return nil
		}
	}
	return harness.Benchmark{
		Name: "fates", Title: "Fates",
		Setup: func(context.Context, harness.Paths) (*harness.Environment, error) {
			return &harness.Environment{
				Env: map[string]string{"FATE": "sealed"}, Versions: map[string]string{"fate": "v1"},
			}, nil
		},
		Cases: []harness.Case{{
			Name:    "case",
			Metrics: []harness.Metric{{Name: "pid"}, {Name: "extra", Optional: true}},
			Variants: []harness.Variant{
				{Name: "good", Run: run("pid")},
				{Name: "generous", Run: run("pid", "extra")},
				{Name: "fails", Run: func(context.Context, *harness.Sample) error {
					return errors.New("no luck, fate is " + os.Getenv("FATE"))
				}},
				{Name: "forgets", Run: run()},
				{Name: "invents", Run: run("pid", "other")},
			},
		}},
	}
}

func TestRun(t *testing.T) {
	var out bytes.Buffer
	data, err := harness.Run(t.Context(), benchmark(),
		harness.Options{Paths: harness.Paths{Dir: t.TempDir()}, Rounds: 2, Out: &out})
	require.NoError(t, err)
	require.Equal(t, "v1", data.Versions["fate"])
	require.Len(t, data.Cases, 1)
	c := &data.Cases[0]

	var order []string
	pids := map[float64]bool{float64(os.Getpid()): true}
	for _, sample := range c.Samples {
		order = append(order, sample.Variant)
		require.False(t, pids[sample.Values["pid"]], "each sample has a process of its own")
		pids[sample.Values["pid"]] = true
	}
	require.Equal(t, []string{"good", "generous", "generous", "good"}, order, "the second round begins with another")
	require.Equal(t, []float64{0, 1}, c.Series("good", "series"))
	require.Empty(t, c.Values("good", "extra"))
	require.Len(t, c.Values("generous", "extra"), 2)

	require.Len(t, c.Failed, 3)
	require.Contains(t, c.Failed["fails"], "no luck, fate is sealed")
	require.Contains(t, c.Failed["forgets"], `metric "pid" was not set`)
	require.Contains(t, c.Failed["invents"], `metric "other" is not one of the case`)
	require.Contains(t, out.String(), "fates / case / good: pid ")

	dir := t.TempDir()
	require.NoError(t, data.Save(dir))
	loaded, err := harness.Load(dir, "fates")
	require.NoError(t, err)
	require.Equal(t, data, loaded)
	missing, err := harness.Load(dir, "other")
	require.NoError(t, err)
	require.Nil(t, missing)
}

// TestBudget: a used-up budget leaves each case its first round, and says what it left out.
func TestBudget(t *testing.T) {
	b := benchmark()
	b.Cases = append(b.Cases, b.Cases[0])
	b.Cases[1].Name = "second"
	var out bytes.Buffer
	data, err := harness.Run(t.Context(), b,
		harness.Options{Paths: harness.Paths{Dir: t.TempDir()}, Rounds: 3, Budget: 1, Out: &out})
	require.NoError(t, err)
	require.Len(t, data.Cases, 2)
	require.Len(t, data.Cases[0].Values("good", "pid"), 1)
	require.NotEmpty(t, data.Cases[1].Failed["fails"], "the second case had its round too")
	require.Equal(t, 1, strings.Count(out.String(), "fates / case: 1 of 3 rounds, no time for more"))
}

// TestInterrupted: what a run took before it was ended is there, and a variant whose turn did not come has not failed.
func TestInterrupted(t *testing.T) {
	for lines, complete := range map[int]bool{1: false, 3: true} {
		b := benchmark()
		b.Cases[0].Variants = b.Cases[0].Variants[:2]
		ctx, cancel := context.WithCancel(t.Context())
		data, err := harness.Run(ctx, b, harness.Options{
			Paths: harness.Paths{Dir: t.TempDir()}, Rounds: 2, Out: &cancelAfter{lines: lines, end: cancel},
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, data.Cases[0].Samples, lines)
		require.Empty(t, data.Cases[0].Failed)
		require.Equal(t, complete, data.Complete())
	}
}

// cancelAfter ends something when so many lines have been written to it.
type cancelAfter struct {
	lines int
	end   func()
}

// Write implements io.Writer.
func (e *cancelAfter) Write(p []byte) (int, error) {
	if e.lines--; e.lines == 0 {
		e.end()
	}
	return len(p), nil
}

func TestMissingIsNotMeasured(t *testing.T) {
	b := benchmark()
	b.Missing = func(harness.Paths) string { return "nothing is built" }
	b.Setup = func(context.Context, harness.Paths) (*harness.Environment, error) {
		return nil, errors.New("must not run")
	}
	var out bytes.Buffer
	data, err := harness.Run(t.Context(), b, harness.Options{Paths: harness.Paths{Dir: t.TempDir()}, Rounds: 1, Out: &out})
	require.NoError(t, err)
	require.Equal(t, "nothing is built", data.NotMeasured)
	require.Empty(t, data.Cases)
	require.Equal(t, "fates: not measured: nothing is built\n", out.String())
}

func TestStopIsCalledAndItsErrorReturned(t *testing.T) {
	b := benchmark()
	b.Cases = nil
	b.Setup = func(context.Context, harness.Paths) (*harness.Environment, error) {
		return &harness.Environment{Stop: func() error { return errors.New("would not go") }}, nil
	}
	_, err := harness.Run(t.Context(), b,
		harness.Options{Paths: harness.Paths{Dir: t.TempDir()}, Rounds: 1, Out: &bytes.Buffer{}})
	require.ErrorContains(t, err, "would not go")
}
