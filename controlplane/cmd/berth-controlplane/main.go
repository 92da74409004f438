// Command berth-controlplane is etcd, kube-apiserver, kube-controller-manager
// and kube-scheduler in one process, with their certificates and rights made by
// itself.
//
// Standard output carries one JSON object for each state a component reaches
// (see package notify); logs go to standard error. SIGTERM or SIGINT stops all
// in order and the exit code is 0; a second signal ends the process at once. Any
// component that ends by itself ends the process with code 1; wrong flags with 2.
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
	"github.com/berth-dev/berth/controlplane/notify"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(start(os.Args[1:])) }

func start(args []string) int {
	c, err := parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "berth-controlplane: %v\n", err)
		return exitUsage
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	// After the first signal the next one has its default effect: an end at once.
	context.AfterFunc(ctx, cancel)

	events := notify.New(os.Stdout, nil)
	setUpLogging(c.LogLevel, events)
	if err := run(ctx, c, events); err != nil {
		_ = events.Report(notify.ControlPlane, notify.Failed, err)
		fmt.Fprintf(os.Stderr, "berth-controlplane: %v\n", err)
		return exitFailure
	}
	_ = events.Report(notify.ControlPlane, notify.Stopped, nil)
	return 0
}

func parse(args []string) (*config.Config, error) {
	c := &config.Config{}
	flags := pflag.NewFlagSet("berth-controlplane", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.StringVar(&c.DataDir, "data-dir", "/var/lib/berth", "directory of pki, kubeconfigs and etcd")
	flags.StringVar(&c.RunDir, "run-dir", "/run/berth", "directory of sockets; a short path")
	flags.IntVar(&c.APIPort, "api-port", 6443, "TCP port of the API server on every bind address")
	flags.StringArrayVar(&c.BindAddresses, "bind-address", []string{"127.0.0.1"},
		"address the API server listens on; repeatable; kubeconfigs point to the first")
	flags.StringVar(&c.AdvertiseAddress, "advertise-address", "",
		"address at which pods reach the API server (default: the first bind address that is not loopback)")
	flags.StringVar(&c.ServiceCIDR, "service-cidr", "10.96.0.0/16", "range of Service addresses")
	flags.StringVar(&c.PodCIDR, "pod-cidr", "10.88.0.0/16", "range of pod addresses")
	flags.StringVar(&c.NodeName, "node-name", "berth", "name of this machine's node")
	flags.StringVar(&c.NodeIP, "node-ip", "", "address at which the API server reaches the kubelet")
	flags.StringVar(&c.LogLevel, "log-level", "warn", "debug, info, warn or error")
	flags.BoolVar(&c.UnsafeNoFsync, "unsafe-no-fsync", false, "etcd skips fsync: for tests only, a power cut loses the cluster")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return c, c.Validate()
}
