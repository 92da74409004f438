// Command hostpathplugin stands in for the program of that name in upstream's "CSI Mock" specs, of which it has the two parts that these
// use: upstream's mock driver, which is in the module of the suite, and the proxy that connects the sidecars and the kubelet with a mock
// driver inside the suite's own process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

// options is the command line: the flags that the suite's manifests give.
type options struct {
	endpoint, proxy string
	config          service.Config
	attach          bool
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("hostpathplugin", flag.ContinueOnError)
	klog.InitFlags(flags)
	flags.StringVar(&o.endpoint, "endpoint", "", "the unix socket to serve on")
	flags.StringVar(&o.proxy, "proxy-endpoint", "", "forward the socket to who connects to this address, such as tcp://:9000, and be no driver")
	flags.StringVar(&o.config.DriverName, "drivername", "csi-mock", "the driver's name")
	flags.BoolVar(&o.attach, "enable-attach", false, "have ControllerPublishVolume")
	flags.BoolVar(&o.config.EnableTopology, "enable-topology", false, "have a topology")
	flags.Int64Var(&o.config.AttachLimit, "attach-limit", 0, "how many volumes the node may have")
	flags.BoolVar(&o.config.NodeExpansionRequired, "node-expand-required", false, "have NodeExpandVolume")
	flags.String("nodeid", "", "not used: the mock driver's node has the driver's name")
	flags.String("statedir", "", "not used: the mock driver has no state")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if o.endpoint == "" || flags.NArg() > 0 {
		return options{}, errors.New("--endpoint is required, and there are flags only")
	}
	o.endpoint = strings.TrimPrefix(o.endpoint, "unix://")
	o.config.DisableAttach = !o.attach
	return o, nil
}

func run(ctx context.Context, o options) error {
	if err := os.Remove(o.endpoint); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	socket, err := net.Listen("unix", o.endpoint)
	if err != nil {
		return fmt.Errorf("serve the driver: %w", err)
	}
	if o.proxy != "" {
		tunnel, err := net.Listen("tcp", strings.TrimPrefix(o.proxy, "tcp://"))
		if err != nil {
			return errors.Join(fmt.Errorf("serve the proxy: %w", err), socket.Close())
		}
		return forward(ctx, socket, tunnel)
	}
	mock := service.New(o.config)
	served := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock})
	// Without an interceptor it logs each call in the form that the suite reads out of the Pod's log.
	if err := served.Start(socket, nil); err != nil {
		return fmt.Errorf("serve the driver: %w", err)
	}
	<-ctx.Done()
	served.Stop()
	return nil
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostpathplugin:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "hostpathplugin:", err)
		os.Exit(1)
	}
}
