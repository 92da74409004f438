// Command berth-controlplane is etcd, kube-apiserver, kube-controller-manager
// and kube-scheduler in one process, with their certificates and rights made by
// itself.
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

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/statuspipe"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(start(os.Args[1:])) }

func start(args []string) int {
	c, err := config.Parse(args, os.Stderr)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "berth-controlplane: %v\n", err)
		return exitUsage
	}
	// A supervisor that has gone away, and with it the reader of standard output,
	// must not take the cluster with it.
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := stopContext()
	defer cancel()

	events := statuspipe.New(os.Stdout, nil)
	setUpLogging(c.LogLevel, events)
	if err := run(ctx, c, events); err != nil {
		_ = events.Report(statuspipe.ControlPlane, statuspipe.Failed, err)
		fmt.Fprintf(os.Stderr, "berth-controlplane: %v\n", err)
		return exitFailure
	}
	_ = events.Report(statuspipe.ControlPlane, statuspipe.Stopped, nil)
	return 0
}

// stopContext is a context that ends when the process is asked to stop. After that
// the next SIGTERM or SIGINT has its default effect, an end at once. SIGHUP stays
// caught: one terminal that is closed sends several. Whoever has it ignored, as
// nohup has, wants the process to outlive the terminal.
func stopContext() (context.Context, context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, cancel)
	if !signal.Ignored(syscall.SIGHUP) { // to be notified would end that
		hungUp, _ := signal.NotifyContext(context.Background(), syscall.SIGHUP)
		context.AfterFunc(hungUp, cancel)
	}
	return ctx, cancel
}
