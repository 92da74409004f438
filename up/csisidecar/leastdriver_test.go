package csisidecar_test

import (
	"context"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

const driverName = "least.example.com"

// leastDriver is a driver on a real socket that has only what the specification demands, and the capabilities and calls that
// a test gives it. It records all calls.
type leastDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedNodeServer
	socket string
	// controller has the capabilities of the controller service. The driver has none if it is nil.
	controller []csi.ControllerServiceCapability_RPC_Type
	// responses has the calls that are implemented beside those that the specification demands.
	responses map[string]func(request any) (any, error)

	mu    sync.Mutex // guards calls
	calls []string
}

func newLeastDriver(t *testing.T, controller ...csi.ControllerServiceCapability_RPC_Type) *leastDriver {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // short, because of the limit on sockets' paths
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return &leastDriver{socket: filepath.Join(dir, "csi.sock"), controller: controller, responses: map[string]func(any) (any, error){}}
}

// serve serves until stop is called, or the test ends.
func (d *leastDriver) serve(t *testing.T) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", d.socket)
	require.NoError(t, err)
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	if d.controller != nil {
		csi.RegisterControllerServer(server, d)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// intercept records the call, and responds as the test has it.
func (d *leastDriver) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	call := path.Base(info.FullMethod)
	d.mu.Lock()
	d.calls = append(d.calls, call)
	d.mu.Unlock()
	if respond := d.responses[call]; respond != nil {
		return respond(request)
	}
	return next(ctx, request)
}

// called returns which calls were made, each once, without those that read what the driver is.
func (d *leastDriver) called() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := slices.DeleteFunc(slices.Clone(d.calls), func(call string) bool {
		return slices.Contains([]string{"GetPluginInfo", "GetPluginCapabilities", "Probe", "ControllerGetCapabilities", "NodeGetCapabilities"}, call)
	})
	slices.Sort(calls)
	return slices.Compact(calls)
}

// GetPluginInfo implements csi.IdentityServer.
func (d *leastDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: driverName, VendorVersion: "1"}, nil
}

// Probe implements csi.IdentityServer.
func (d *leastDriver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *leastDriver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	response := &csi.GetPluginCapabilitiesResponse{}
	if d.controller != nil {
		response.Capabilities = append(response.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}})
	}
	return response, nil
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *leastDriver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, capability := range d.controller {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: capability}}})
	}
	return response, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *leastDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *leastDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-id"}, nil
}
