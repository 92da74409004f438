// Command berth-controlplane is etcd, kube-apiserver, kube-controller-manager
// and kube-scheduler in one process, which creates their certificates and roles
// itself.
//
// With the first argument kube-proxy it is upstream's kube-proxy instead, with its own flags.
//
// Standard output carries one JSON object for each state a component reaches
// (see package notify); logs go to standard error. SIGTERM, SIGINT, or SIGHUP
// unless it is ignored, stops all in order and the exit code is 0; a second SIGTERM
// or SIGINT ends the process at once. Any component that ends by itself ends the
// process with code 1; wrong flags with 2.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // the time zones of CronJobs, for machines without the package tzdata

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/contain"
	"github.com/berth-dev/berth/controlplane/gctuner"
	"github.com/berth-dev/berth/controlplane/statuspipe"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(start(os.Args[1:])) }

func start(args []string) int {
	if len(args) > 0 && args[0] == proxyCommand {
		return runProxy(args[1:])
	}
	c, err := config.Parse(args, os.Stderr)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "berth-controlplane: %v\n", err)
		return exitUsage
	}
	contain.Install()
	// The cluster goes on when the reader of standard output has ended.
	signal.Ignore(syscall.SIGPIPE)
	gctuner.DeferFirst(gctuner.StartGarbage)
	ctx, cancel := stopContext()
	defer cancel()

	events := statuspipe.New(os.Stdout, nil)
	setUpLogging(c.LogLevel, events)
	if err := run(ctx, c, events); err != nil {
		return fail(events, err)
	}
	_ = events.Report(statuspipe.ControlPlane, statuspipe.Stopped, nil)
	return 0
}

// fail reports why the process fails, and returns its exit code.
func fail(events *statuspipe.Writer, err error) int {
	_ = events.Report(statuspipe.ControlPlane, statuspipe.Failed, err)
	fmt.Fprintf(os.Stderr, "berth-controlplane: %v\n", err)
	return exitFailure
}

// stopContext returns a context that a stop signal cancels. After that the next
// SIGTERM or SIGINT has its default effect and ends the process at once. SIGHUP stays
// caught, because one closed terminal sends several. If SIGHUP is ignored, as under
// nohup, the process outlives its terminal.
func stopContext() (context.Context, context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, cancel)
	if !signal.Ignored(syscall.SIGHUP) { // Notify would undo that
		hungUp, _ := signal.NotifyContext(context.Background(), syscall.SIGHUP)
		context.AfterFunc(hungUp, cancel)
	}
	return ctx, cancel
}
