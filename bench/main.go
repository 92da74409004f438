package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/report"
	"github.com/berth-dev/berth/bench/suite/attachdetach"
	"github.com/berth-dev/berth/bench/suite/client"
	"github.com/berth-dev/berth/bench/suite/cluster"
	"github.com/berth-dev/berth/bench/suite/expect"
	"github.com/berth-dev/berth/bench/suite/pod"
	"github.com/berth-dev/berth/bench/suite/provision"
	"github.com/berth-dev/berth/bench/suite/runtime"
)

// benchmarks are all there are, in the order of the report.
func benchmarks() []harness.Benchmark {
	return []harness.Benchmark{
		pod.Benchmark(), pod.Idle(), cluster.Benchmark(), provision.Benchmark(),
		attachdetach.Benchmark(), attachdetach.Drain(),
		runtime.Benchmark(), expect.Benchmark(), client.Benchmark(),
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command is what the command line asks for.
type command struct {
	rounds           int
	docs, bin        string
	profile, cases   string
	list, onlyReport bool
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
	flags.StringVar(&c.docs, "docs", "../docs", "directory of benchmarks.md and benchmarks/")
	flags.StringVar(&c.bin, "bin", "../bin", "directory of Berth's binaries")
	flags.StringVar(&c.cases, "cases", "", "measure only cases whose name contains this; nothing is written")
	flags.StringVar(&c.profile, "profile", "",
		"directory for CPU and heap profiles of each variant; nothing else is written")
	flags.BoolVar(&c.list, "list", false, "list the benchmarks")
	flags.BoolVar(&c.onlyReport, "report", false, "measure nothing, write the report from the data that is there")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.rounds < 1 {
		return c, fmt.Errorf("flag -rounds is %d, must be at least 1", c.rounds)
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
			fmt.Printf("%-14s %s\n", b.Name, b.Title)
		}
		return nil
	}
	if !c.onlyReport {
		if err := c.measure(ctx, all); err != nil {
			return err
		}
	}
	if c.cases != "" || c.profile != "" {
		return nil
	}
	return report.Write(c.docs, all)
}

// measure runs the benchmarks asked for and stores what they yield.
func (c command) measure(ctx context.Context, all []harness.Benchmark) error {
	chosen, err := choose(all, c.names)
	if err != nil {
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
	for _, b := range chosen {
		data, err := harness.Run(ctx, b, harness.Options{
			Site: harness.Site{Bin: bin, Dir: dir}, Rounds: c.rounds, Cases: c.cases, Out: os.Stdout, Profile: c.profile,
		})
		if err != nil {
			return err
		}
		if c.cases == "" && c.profile == "" {
			if err := data.Save(filepath.Join(c.docs, "benchmarks")); err != nil {
				return err
			}
		}
	}
	return nil
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
