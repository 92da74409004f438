package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/report"
	"github.com/berth-dev/berth/bench/suite/attachdetach"
	"github.com/berth-dev/berth/bench/suite/client"
	"github.com/berth-dev/berth/bench/suite/cluster"
	"github.com/berth-dev/berth/bench/suite/eviction"
	"github.com/berth-dev/berth/bench/suite/expect"
	"github.com/berth-dev/berth/bench/suite/fork"
	"github.com/berth-dev/berth/bench/suite/page"
	"github.com/berth-dev/berth/bench/suite/pod"
	"github.com/berth-dev/berth/bench/suite/provision"
	"github.com/berth-dev/berth/bench/suite/runtime"
	"github.com/berth-dev/berth/bench/suite/service"
	"github.com/berth-dev/berth/bench/suite/snapshots"
	"github.com/berth-dev/berth/bench/suite/volumes"
	"github.com/berth-dev/berth/internal/signals"
)

// benchmarks returns all benchmarks in the order of the report.
func benchmarks() []harness.Benchmark {
	return []harness.Benchmark{
		pod.Benchmark(), pod.Idle(), pod.Resources(), volumes.Benchmark(), snapshots.Benchmark(), cluster.Benchmark(), cluster.Idle(), fork.Benchmark(),
		page.Benchmark(), service.Benchmark(),
		provision.Benchmark(), provision.Idle(), eviction.Benchmark(),
		attachdetach.Benchmark(), attachdetach.Drain(),
		runtime.Benchmark(), expect.Benchmark(), client.Benchmark(),
	}
}

func main() {
	ctx := signals.Context()
	if sample := len(os.Args) > 1 && os.Args[1] == harness.ChildFlag; sample {
		// One Ctrl-C sends it two signals: from the terminal, and from its parent, with which it ends at the latest.
		signals.IgnoreSecondSignal()
	} else {
		// A run goes on when its reader has ended: its results are in files, and if it died it would leave processes.
		signals.IgnoreSIGPIPE()
		context.AfterFunc(ctx, func() {
			fmt.Fprintln(os.Stderr, "bench: removing what was started; a second signal ends it at once and leaves it")
		})
	}
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitCode(ctx))
	}
}

// exitCode returns the exit code of a failed run; that of a run stopped by a signal depends on the signal.
func exitCode(ctx context.Context) int {
	if ctx.Err() != nil {
		return signals.ExitCode(ctx)
	}
	return 1
}

// command is the command line.
type command struct {
	rounds           int
	docs, bin        string
	profile, cases   string
	budget           time.Duration
	list, onlyReport bool
	variants         []string
	names            []string
}

func parse(args []string) (command, error) {
	var c command
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(),
			"bench [flags] [NAME…]  measures all benchmarks, or the named ones, and writes the report")
		flags.PrintDefaults()
	}
	flags.IntVar(&c.rounds, "rounds", 5, "samples of each variant")
	flags.DurationVar(&c.budget, "budget", 40*time.Minute,
		"how long the run may take: rounds after the first are omitted if there is no time for them; 0 is no limit")
	flags.StringVar(&c.docs, "docs", "../docs", "directory of benchmarks.md and benchmarks/")
	flags.StringVar(&c.bin, "bin", "../bin", "directory of Berth's binaries")
	flags.StringVar(&c.cases, "cases", "", "measure only cases whose name contains this; nothing is written")
	flags.Func("variant", "measure only the variant of this name, and others for which the flag is given, too; nothing is written",
		func(name string) error {
			c.variants = append(c.variants, name)
			return nil
		})
	flags.StringVar(&c.profile, "profile", "",
		"directory for CPU and heap profiles of each variant; nothing else is written")
	flags.BoolVar(&c.list, "list", false, "list the benchmarks")
	flags.BoolVar(&c.onlyReport, "report", false, "measure nothing, write the report from the existing data")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.rounds < 1 {
		return c, fmt.Errorf("flag -rounds is %d, must be at least 1", c.rounds)
	}
	if c.budget < 0 {
		return c, fmt.Errorf("flag -budget is %s, must be 0 or more", c.budget)
	}
	c.names = flags.Args()
	return c, nil
}

func run(ctx context.Context, args []string) error {
	all := benchmarks()
	if len(args) > 0 && args[0] == harness.ChildFlag {
		return harness.Child(ctx, all, args[1:])
	}
	c, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.list {
		for _, b := range all {
			fmt.Printf("%-14s %2.0f min  %s\n", b.Name, b.Budget.Minutes(), b.Title)
		}
		return nil
	}
	if c.onlyReport {
		return report.Write(c.docs, all)
	}
	return c.measure(ctx, all)
}

// measure runs the benchmarks asked for, one after the other. What one yields is stored, and the report written, before
// the next begins: a benchmark that fails, or that is stopped, does not affect the others.
func (c command) measure(ctx context.Context, all []harness.Benchmark) error {
	chosen, err := choose(all, c.names)
	if err != nil {
		return err
	}
	if chosen, err = c.limit(chosen); err != nil {
		return err
	}
	bin, err := filepath.Abs(c.bin)
	if err != nil {
		return fmt.Errorf("flag -bin: %w", err)
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	options := harness.Options{
		Paths: harness.Paths{Bin: bin, Dir: dir}, Rounds: c.rounds, Cases: c.cases, Variants: c.variants, Out: os.Stdout, Profile: c.profile,
	}
	began := time.Now()
	var failed error
	for i, b := range chosen {
		if c.budget > 0 {
			options.Budget = share(c.budget-time.Since(began), chosen[i:])
		}
		fmt.Printf("[%d/%d] %s: %s; %s so far\n", i+1, len(chosen), b.Name, allowance(options.Budget),
			time.Since(began).Round(time.Second))
		if err := c.measureOne(ctx, b, options, all); err != nil {
			failed = errors.Join(failed, err)
			fmt.Printf("%s: %v\n", b.Name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	fmt.Printf("took %s\n", time.Since(began).Round(time.Second))
	return failed
}

func (c command) measureOne(ctx context.Context, b harness.Benchmark, options harness.Options, all []harness.Benchmark) error {
	data, err := harness.Run(ctx, b, options)
	if data == nil || c.cases != "" || len(c.variants) > 0 || c.profile != "" {
		return err
	}
	if ctx.Err() != nil && !data.Complete() {
		return errors.Join(err, errors.New("not every case had its turn, so the data that were there stay"))
	}
	if saveErr := data.Save(filepath.Join(c.docs, "benchmarks")); saveErr != nil {
		return errors.Join(err, saveErr)
	}
	return errors.Join(err, report.Write(c.docs, all))
}

// share is the part of the time left that the first of those left has, which is never 0: that would be no bound.
func share(left time.Duration, chosen []harness.Benchmark) time.Duration {
	var sum time.Duration
	for _, b := range chosen {
		sum += b.Budget
	}
	return max(1, time.Duration(float64(left)*float64(chosen[0].Budget)/float64(sum)))
}

func allowance(budget time.Duration) string {
	if budget == 0 {
		return "no bound on its time"
	}
	return "may take " + budget.Round(time.Second).String()
}

// limit returns the benchmarks that have a case and a variant of those asked for. Each variant must be one of them.
func (c command) limit(chosen []harness.Benchmark) ([]harness.Benchmark, error) {
	options := harness.Options{Cases: c.cases, Variants: c.variants}
	known := make(map[string]bool)
	var left []harness.Benchmark
	for _, b := range chosen {
		variants := options.Chosen(b)
		if len(variants) > 0 {
			left = append(left, b)
		}
		for _, name := range variants {
			known[name] = true
		}
	}
	if len(left) == 0 {
		return nil, fmt.Errorf("-cases %q -variant %q: no benchmark that was chosen has such a case with such a variant", c.cases, c.variants)
	}
	for _, name := range c.variants {
		if !known[name] {
			return nil, fmt.Errorf("-variant %q: no case that was chosen has it", name)
		}
	}
	return left, nil
}

func choose(all []harness.Benchmark, names []string) ([]harness.Benchmark, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []harness.Benchmark
	for _, name := range names {
		found := false
		for _, b := range all {
			if b.Name == name {
				chosen, found = append(chosen, b), true
			}
		}
		if !found {
			var known []string
			for _, b := range all {
				known = append(known, b.Name)
			}
			return nil, fmt.Errorf("no benchmark %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}
