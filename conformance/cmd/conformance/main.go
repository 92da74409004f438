// Command conformance runs upstream's end-to-end suite on a Berth cluster of its own and writes a report. run.sh
// builds all that it needs and starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// options is the command line. It has many fields because each flag is one.
type options struct {
	bin, dataDir, out             string
	expected, list, report        string
	focus, skip                   string
	drivers                       []string
	parallel, apiPort             int
	attempts                      int
	podCIDR, serviceCIDR, runtime string
	secondNode                    string
	nodeNetwork                   netip.Prefix
	conformance, resume, oneNode  bool
	kubeletService                bool
	images, kubeletRoot           string
	timeout, startTimeout         time.Duration

	// kill is closed when a suite that was stopped is to be killed; it is no flag.
	kill <-chan struct{}
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin-dir", "", "the directory of make build, with conformance/ of build.sh in it")
	flags.StringVar(&o.dataDir, "data-dir", "/var/lib/berth-conformance",
		"the cluster's directory; an existing cluster in it is deleted")
	flags.StringVar(&o.out, "out", "",
		"directory of logs and of the suite's own report (default: conformance/out of the bin directory)")
	flags.StringVar(&o.expected, "expected", "", "the list of specs that must pass")
	flags.StringVar(&o.list, "list", "", "run exactly the specs of this list, which must all pass (default: those of --expected)")
	flags.BoolVar(&o.conformance, "conformance", false, "run exactly the specs that upstream requires of a conformant cluster, which must all pass")
	flags.BoolVar(&o.resume, "resume", false, "run only those specs of the list that the last run, of the same --out, left without a result or that failed "+
		"in it; the report has the results of both")
	flags.StringVar(&o.report, "report", "", "the file to write the report to")
	flags.StringVar(&o.focus, "focus", "", "run the specs whose name matches this regular expression instead of a list")
	flags.StringVar(&o.skip, "skip", "", "omit the specs whose name matches this regular expression")
	flags.Func("driver", "a file that defines a storage driver for the suite's [External.Storage] specs (may be repeated)",
		func(file string) error { o.drivers = append(o.drivers, file); return nil })
	flags.IntVar(&o.parallel, "parallel", 6, "how many specs run at once")
	flags.IntVar(&o.attempts, "attempts", 2, "attempts for each spec; the report names those that needed more than one")
	flags.IntVar(&o.apiPort, "api-port", 16443, "the API server's port")
	flags.StringVar(&o.runtime, "runtime", "", "the runtime of the Pods, as berth up --runtime (default: berth's)")
	flags.StringVar(&o.podCIDR, "pod-cidr", "10.95.0.0/16", "the Pods' network")
	flags.StringVar(&o.serviceCIDR, "service-cidr", "10.96.0.0/16", "the Services' network")
	flags.StringVar(&o.secondNode, "second-node", "berth-conf-2",
		"the name of the second node, of its network namespace and of this machine's interface to it; 15 characters at most")
	flags.BoolVar(&o.oneNode, "one-node", false, "have no second node: for drivers in Pods, which need /var/lib/kubelet to be that of their own node")
	flags.BoolVar(&o.kubeletService, "kubelet-service", false,
		"make the node's kubelet the systemd service \"kubelet\", which disruptive specs stop over SSH (KUBE_SSH_USER, KUBE_SSH_KEY_PATH); needs --one-node")
	flags.StringVar(&o.kubeletRoot, "kubelet-root-dir", "",
		"the directory of Pods' files, as berth up --kubelet-root-dir: /var/lib/kubelet for drivers in Pods that expect it (default: in --data-dir)")
	flags.StringVar(&o.images, "images", "", "an OCI layout of the stub images, made by \"conformance images\" (default: it is made in --out)")
	flags.TextVar(&o.nodeNetwork, "node-network", netip.MustParsePrefix("10.97.0.0/30"), "the network of this machine and the second node")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Hour, "time limit of the suite")
	flags.DurationVar(&o.startTimeout, "start-timeout", 3*time.Minute, "time limit of the cluster's start, and of its stop")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("argument %q: there are flags only", flags.Arg(0))
	case o.bin == "" || o.expected == "" || o.report == "":
		return options{}, errors.New("--bin-dir, --expected and --report are required; run.sh sets them")
	case o.focus != "" && o.list != "" || o.conformance && (o.focus != "" || o.list != ""):
		return options{}, errors.New("--focus, --list and --conformance exclude each other")
	case o.resume && o.focus != "":
		return options{}, errors.New("--resume needs a list: omit --focus")
	case o.kubeletService && !o.oneNode:
		return options{}, errors.New("--kubelet-service needs --one-node")
	case o.attempts < 1:
		return options{}, fmt.Errorf("--attempts %d: at least one attempt is needed", o.attempts)
	case o.parallel < 1:
		return options{}, fmt.Errorf("--parallel %d: at least one spec must run", o.parallel)
	}
	return o, nil
}

// stopSignals returns the signals that stop a run: Ctrl-C, SIGTERM, and the end of the terminal, except under nohup.
func stopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// signalCause is the signal that stopped a run.
type signalCause struct{ syscall.Signal }

func (e signalCause) Error() string { return e.String() }

// exitCode returns the exit code of a run: 128 and the signal's number if a signal stopped it.
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

// stopContext returns a context that the first signal cancels, and a channel that the second one closes, except for SIGHUP,
// of which one closed terminal sends several. Further signals have no effect, because a program that ended at once would
// leave its cluster running. So would one that died of a write without a reader: in `make conformance | tee`, Ctrl-C ends
// tee first.
func stopContext(came <-chan os.Signal) (context.Context, <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(context.Background())
	kill := make(chan struct{})
	go func() {
		first := <-came
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		logf("%s: stopping the suite, which cleans up, and then the cluster; a second signal kills the suite", first)
		cancel(signalCause{first.(syscall.Signal)})
		for <-came == syscall.SIGHUP {
			continue
		}
		logf("killing the suite, stopping the cluster")
		close(kill)
	}()
	return ctx, kill
}

// command returns what the command line names: `node`, `mirror`, `images`, or the suite on a cluster.
func command(args []string) (func(ctx context.Context, kill <-chan struct{}) error, error) {
	if len(args) > 0 && args[0] == "mirror" {
		return func(ctx context.Context, _ <-chan struct{}) error { return runMirror(ctx, args[1:]) }, nil
	}
	if len(args) > 0 && args[0] == "images" {
		return func(context.Context, <-chan struct{}) error { return runImages(args[1:]) }, nil
	}
	if len(args) > 0 && args[0] == "node" {
		o, err := parseNode(args[1:])
		return func(ctx context.Context, kill <-chan struct{}) error {
			o.kill = kill
			return runNode(ctx, o)
		}, err
	}
	o, err := parse(args)
	return func(ctx context.Context, kill <-chan struct{}) error {
		o.kill = kill
		return run(ctx, o)
	}, err
}

func main() {
	runtime.LockOSThread() // the processes that are started here get a signal when their thread ends
	do, err := command(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	came := make(chan os.Signal, 8) // a few at once, from the terminal and from make
	signal.Notify(came, stopSignals()...)
	ctx, kill := stopContext(came)
	if err := do(ctx, kill); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(exitCode(ctx, err))
	}
}
