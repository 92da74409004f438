// Command csiregistrar stands in for node-driver-registrar: it asks a CSI driver for its name and registers it with the kubelet, by a
// socket in /registration.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registry is where the Pods of the suite's manifests have the kubelet's plugins_registry.
const registry = "/registration"

// server answers the kubelet.
type server struct {
	registration.UnimplementedRegistrationServer
	driver, endpoint string
	rejected         chan error
}

// GetInfo implements registration.RegistrationServer.
func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: s.driver, Endpoint: s.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements registration.RegistrationServer. A rejected driver ends the program, and so the container, which is
// how the driver is registered again.
func (s *server) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	klog.Infof("the kubelet registered the driver %s: %t %s", s.driver, status.GetPluginRegistered(), status.GetError())
	if !status.GetPluginRegistered() {
		select {
		case s.rejected <- fmt.Errorf("the kubelet rejected the driver %q: %s", s.driver, status.GetError()):
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// driverName asks the driver for its name, once it serves.
func driverName(ctx context.Context, address string) (string, error) {
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", fmt.Errorf("connect to the driver: %w", err)
	}
	defer conn.Close()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf("ask the driver for its name: %w", err)
	}
	return info.GetName(), nil
}

func run(ctx context.Context, address, endpoint string, timeout time.Duration) error {
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	name, err := driverName(asking, address)
	if err != nil {
		return err
	}
	path := filepath.Join(registry, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("register the driver: %w", err)
	}
	s := &server{driver: name, endpoint: endpoint, rejected: make(chan error, 1)}
	served := grpc.NewServer()
	registration.RegisterRegistrationServer(served, s)
	result := make(chan error, 1)
	go func() { result <- served.Serve(listener) }()
	select {
	case <-ctx.Done():
		err = nil
	case err = <-s.rejected:
	case err = <-result:
		return fmt.Errorf("register the driver: %w", err)
	}
	served.Stop() // removes the socket
	<-result
	return err
}

func main() {
	klog.InitFlags(nil)
	address := flag.String("csi-address", "/run/csi/socket", "the driver's socket")
	endpoint := flag.String("kubelet-registration-path", "", "the driver's socket as the kubelet has it")
	timeout := flag.Duration("timeout", time.Minute, "how long the driver may take to serve")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *address, *endpoint, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "csiregistrar:", err)
		os.Exit(1)
	}
}
