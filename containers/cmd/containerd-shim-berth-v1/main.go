// Command containerd-shim-berth-v1 is a shim of containerd that has runc's library in its own process, one for each Pod.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/codepages"
	"github.com/berth-dev/berth/containers/shim/bootstrap"
	"github.com/berth-dev/berth/containers/shim/events"
	"github.com/berth-dev/berth/containers/shim/features"
	"github.com/berth-dev/berth/containers/shim/guard"
	"github.com/berth-dev/berth/containers/shim/handoff"
	"github.com/berth-dev/berth/containers/shim/reaper"
	_ "github.com/berth-dev/berth/containers/shim/runcinit"
	"github.com/berth-dev/berth/containers/shim/task"
)

const runtimeName = "io.containerd.berth.v1"

// version is runc's and containerd's versions; the build sets it.
var version = "unknown"

const (
	// idleAfter is how long there must be no request until memory is returned to the machine.
	idleAfter = 10 * time.Second
	// lastEvents bounds the sending of events when the shim ends.
	lastEvents = 5 * time.Second
	// lastReply bounds the wait for the end of connections when the shim ends.
	lastReply = time.Second
)

func init() {
	runtime.LockOSThread() // package reaper says what main's thread is for
}

func main() {
	err := run()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "containerd-shim-berth-v1: %v\n", err)
	if handoff.Forked() {
		_ = handoff.Release(1)
	}
	os.Exit(1)
}

func run() error {
	call, err := bootstrap.Parse(os.Args[1:])
	if err != nil {
		return err
	}
	var output []byte
	switch {
	case call.Version:
		output = fmt.Appendf(nil, "containerd-shim-berth-v1:\n  Version:  %s\n  Go version: %s\n", version, runtime.Version())
	case call.Info:
		output, err = features.Info(runtimeName, version, os.Stdin)
	case call.Action == "delete":
		output, err = call.Delete()
	default:
		return serve(call)
	}
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(output)
	return err
}

// serve starts the shim and serves until it is shut down.
func serve(call bootstrap.Call) (err error) {
	start, err := call.Prepare(os.Stdin)
	if err != nil {
		return err
	}
	if start.Listener == nil {
		return report(start.Result) // the group has a shim
	}
	defer start.Listener.Close() // removes the socket
	if err := bootstrap.AdjustOOMScore(); err != nil {
		logrus.WithError(err).Warn("failed to set the shim's OOM score")
	}
	orphans, err := reaper.NewOrphans()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	publisher := events.New(start.TTRPCAddress, call.Namespace)
	service, err := task.New(ctx, task.Deps{Orphans: orphans, Publisher: publisher, Shutdown: cancel}, call.Namespace)
	if err != nil {
		return err
	}
	if err := report(start.Result); err != nil {
		return err
	}
	if err := bootstrap.RedirectOutput(call.Debug); err != nil {
		return err
	}
	if err := handoff.Release(0); err != nil {
		return err
	}
	sent := make(chan struct{})
	guard.Go(ctx, "events", func() {
		defer close(sent)
		publisher.Run(context.WithoutCancel(ctx))
	})
	handleSignals(ctx, cancel)
	var clients connections
	if err := listenAndServe(ctx, service, start.Listener, &clients); err != nil {
		return err
	}
	orphans.Run(ctx)
	finish(publisher, sent, &clients)
	return nil
}

// report gives containerd the result of the start.
func report(result []byte) error {
	if _, err := os.Stdout.Write(result); err != nil {
		return fmt.Errorf("report the start to containerd: %w", err)
	}
	return nil
}

// listenAndServe serves the Task API in the background.
func listenAndServe(ctx context.Context, service *task.Service, listener net.Listener, clients *connections) error {
	idle := time.AfterFunc(idleAfter, releaseMemory)
	count := func(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
		idle.Reset(idleAfter)
		return guard.Unary(ctx, unmarshal, info, method)
	}
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(clients), ttrpc.WithUnaryServerInterceptor(count))
	if err != nil {
		return fmt.Errorf("serve the Task API: %w", err)
	}
	api.RegisterTTRPCTaskService(server, service)
	guard.Go(ctx, "server", func() {
		if err := server.Serve(context.WithoutCancel(ctx), listener); err != nil && !errors.Is(err, ttrpc.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			logrus.WithError(err).Fatal("failed to serve the Task API")
		}
	})
	return nil
}

// releaseMemory returns the free part of the heap and the pages of the program to the machine.
func releaseMemory() {
	debug.FreeOSMemory()
	if err := codepages.Release(); err != nil {
		logrus.WithError(err).Warn("failed to release memory while the shim is idle")
	}
}

// finish sends the last events, and waits until containerd has closed its connections: it does so when it has the reply to its last
// request. Nothing is left for which a shim has to stay.
func finish(publisher *events.Publisher, sent <-chan struct{}, clients *connections) {
	publisher.Close()
	ctx, cancel := context.WithTimeout(context.Background(), lastEvents)
	defer cancel()
	select {
	case <-sent:
	case <-ctx.Done():
		logrus.Warn("events are lost: containerd does not take them")
	}
	ctx, cancel = context.WithTimeout(context.Background(), lastReply)
	defer cancel()
	clients.wait(ctx)
}

// handleSignals ends the shim at SIGTERM and SIGINT, and logs all goroutines at SIGUSR1.
func handleSignals(ctx context.Context, cancel context.CancelFunc) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1)
	guard.Go(ctx, "signals", func() {
		for received := range signals {
			if received != unix.SIGUSR1 {
				cancel()
				return
			}
			_ = pprof.Lookup("goroutine").WriteTo(logrus.StandardLogger().Out, 2)
		}
	})
}
