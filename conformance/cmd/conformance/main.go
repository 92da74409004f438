// Command conformance runs upstream's end-to-end suite on a Berth cluster of its own and writes a report. run.sh
// builds all that it needs and starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	bin, dataDir, out      string
	expected, list, report string
	focus, skip            string
	drivers                []string
	parallel, apiPort      int
	attempts               int
	podCIDR, serviceCIDR   string
	timeout                time.Duration

	// kill is closed when the suite, being ended, is to be killed; no flag.
	kill <-chan struct{}
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin-dir", "", "the directory of make build, with conformance/ of build.sh in it")
	flags.StringVar(&o.dataDir, "data-dir", "/var/lib/berth-conformance",
		"the cluster's directory; a cluster in it is deleted")
	flags.StringVar(&o.out, "out", "",
		"where logs and the suite's own report go (default: conformance/out of the bin directory)")
	flags.StringVar(&o.expected, "expected", "", "the list of specs that must pass")
	flags.StringVar(&o.list, "list", "", "run exactly the specs of this list, which must all pass (default: those of --expected)")
	flags.StringVar(&o.report, "report", "", "the file to write the report to")
	flags.StringVar(&o.focus, "focus", "", "run the specs whose name matches this regular expression instead of a list")
	flags.StringVar(&o.skip, "skip", "", "leave out the specs whose name matches this regular expression")
	flags.Func("driver", "a file that defines a storage driver for the suite's [External.Storage] specs (may be repeated)",
		func(file string) error { o.drivers = append(o.drivers, file); return nil })
	flags.IntVar(&o.parallel, "parallel", 6, "how many specs run at once")
	flags.IntVar(&o.attempts, "attempts", 2, "how often a spec may be tried; the report names those that needed more than one")
	flags.IntVar(&o.apiPort, "api-port", 16443, "the API server's port")
	flags.StringVar(&o.podCIDR, "pod-cidr", "10.95.0.0/16", "the Pods' network")
	flags.StringVar(&o.serviceCIDR, "service-cidr", "10.96.0.0/16", "the Services' network")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Hour, "when the suite is ended")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("argument %q: there are flags only", flags.Arg(0))
	case o.bin == "" || o.expected == "" || o.report == "":
		return options{}, errors.New("--bin-dir, --expected and --report are required; run.sh sets them")
	case o.focus != "" && o.list != "":
		return options{}, errors.New("--focus and --list exclude each other")
	case o.attempts < 1:
		return options{}, fmt.Errorf("--attempts %d: a spec must be tried once", o.attempts)
	case o.parallel < 1:
		return options{}, fmt.Errorf("--parallel %d: at least one spec must run at once", o.parallel)
	}
	return o, nil
}

// stopSignals are the signals that end a run: Ctrl-C, SIGTERM, and the end of the terminal, unless nohup keeps that away.
func stopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// signalCause is the signal that ended a run.
type signalCause struct{ syscall.Signal }

func (e signalCause) Error() string { return e.String() }

// exitCode is that of a run with this error: of one that a signal ended, 128 and the signal's number, as of any program.
func exitCode(ctx context.Context, err error) int {
	by := signalCause{}
	switch {
	case err == nil:
		return 0
	case errors.As(context.Cause(ctx), &by):
		return 128 + int(by.Signal)
	}
	return 1
}

// stopContext is a context that ends with the first of the signals that come, and a channel that is closed by the second,
// but not by SIGHUP, of which one closed terminal makes several. Further ones change nothing: a program that ended at once
// would leave its cluster running. So would one that died of a write without a reader: of `make conformance | tee`, Ctrl-C
// ends tee first.
func stopContext(came <-chan os.Signal) (context.Context, <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(context.Background())
	hurry := make(chan struct{})
	go func() {
		first := <-came
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		logf("%s: ending the suite, which cleans up, and then the cluster; once more has the suite killed", first)
		cancel(signalCause{first.(syscall.Signal)})
		for <-came == syscall.SIGHUP {
			continue
		}
		logf("killing the suite, ending the cluster")
		close(hurry)
	}()
	return ctx, hurry
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	came := make(chan os.Signal, 8) // a few at once, from the terminal and from make
	signal.Notify(came, stopSignals()...)
	ctx, hurry := stopContext(came)
	o.kill = hurry
	err = run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(exitCode(ctx, err))
	}
}
