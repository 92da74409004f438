package csi_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const driverName = "disk.example.com"

// fakeDriver is a driver that behaves as its test sets, mostly wrongly.
type fakeDriver struct {
	csiapi.UnimplementedIdentityServer
	csiapi.UnimplementedControllerServer

	name       string
	unready    bool
	noTopology bool
	rpcs       []csiapi.ControllerServiceCapability_RPC_Type

	mu               sync.Mutex
	create           func(ctx context.Context, req *csiapi.CreateVolumeRequest) (*csiapi.Volume, error)
	remove           func(req *csiapi.DeleteVolumeRequest) error
	created          []*csiapi.CreateVolumeRequest
	deleted          []*csiapi.DeleteVolumeRequest
	infoCalls        int
	probed           chan struct{} // receives a value at a Probe unless it is full
	capacityRequests []*csiapi.GetCapacityRequest
	largest          *wrapperspb.Int64Value
}

// newFakeDriver returns a driver that can do everything and does it right.
func newFakeDriver() *fakeDriver {
	return &fakeDriver{name: driverName, probed: make(chan struct{}, 1), rpcs: []csiapi.ControllerServiceCapability_RPC_Type{
		csiapi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csiapi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csiapi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csiapi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csiapi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	}}
}

func (f *fakeDriver) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	return f.serveAs(t, socket, f, nil)
}

// serveAs serves another controller service beside the driver's identity, and a node service, if there is one.
func (f *fakeDriver) serveAs(
	t *testing.T, socket string, controller csiapi.ControllerServer, node csiapi.NodeServer,
) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	csiapi.RegisterIdentityServer(server, f)
	csiapi.RegisterControllerServer(server, controller)
	if node != nil {
		csiapi.RegisterNodeServer(server, node)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			server.Stop()
			require.NoError(t, <-done)
		})
	}
	t.Cleanup(stop)
	return stop
}

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // short, because of the limit on sockets' paths
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "csi.sock")
}

func (f *fakeDriver) GetPluginInfo(
	context.Context, *csiapi.GetPluginInfoRequest,
) (*csiapi.GetPluginInfoResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.infoCalls++
	return &csiapi.GetPluginInfoResponse{Name: f.name, VendorVersion: "1"}, nil
}

// waitProbed waits until a client has asked whether the driver is ready.
func (f *fakeDriver) waitProbed() { <-f.probed }

// infoCallCount is how often a client has asked who the driver is.
func (f *fakeDriver) infoCallCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.infoCalls
}

func (f *fakeDriver) Probe(context.Context, *csiapi.ProbeRequest) (*csiapi.ProbeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case f.probed <- struct{}{}:
	default:
	}
	return &csiapi.ProbeResponse{Ready: wrapperspb.Bool(!f.unready)}, nil
}

func (f *fakeDriver) GetPluginCapabilities(
	context.Context, *csiapi.GetPluginCapabilitiesRequest,
) (*csiapi.GetPluginCapabilitiesResponse, error) {
	service := func(kind csiapi.PluginCapability_Service_Type) *csiapi.PluginCapability {
		return &csiapi.PluginCapability{
			Type: &csiapi.PluginCapability_Service_{Service: &csiapi.PluginCapability_Service{Type: kind}}}
	}
	resp := &csiapi.GetPluginCapabilitiesResponse{Capabilities: []*csiapi.PluginCapability{
		service(csiapi.PluginCapability_Service_CONTROLLER_SERVICE),
	}}
	if !f.noTopology {
		resp.Capabilities = append(resp.Capabilities,
			service(csiapi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS))
	}
	return resp, nil
}

func (f *fakeDriver) ControllerGetCapabilities(
	context.Context, *csiapi.ControllerGetCapabilitiesRequest,
) (*csiapi.ControllerGetCapabilitiesResponse, error) {
	resp := &csiapi.ControllerGetCapabilitiesResponse{}
	for _, rpc := range f.rpcs {
		resp.Capabilities = append(resp.Capabilities, &csiapi.ControllerServiceCapability{
			Type: &csiapi.ControllerServiceCapability_Rpc{Rpc: &csiapi.ControllerServiceCapability_RPC{Type: rpc}}})
	}
	return resp, nil
}

func (f *fakeDriver) CreateVolume(
	ctx context.Context, req *csiapi.CreateVolumeRequest,
) (*csiapi.CreateVolumeResponse, error) {
	f.mu.Lock()
	f.created = append(f.created, req)
	create := f.create
	f.mu.Unlock()
	volume := &csiapi.Volume{
		VolumeId: "id-of-" + req.GetName(), CapacityBytes: req.GetCapacityRange().GetRequiredBytes(),
		ContentSource: req.GetVolumeContentSource(),
	}
	if create != nil {
		var err error
		if volume, err = create(ctx, req); err != nil {
			return nil, err
		}
	}
	return &csiapi.CreateVolumeResponse{Volume: volume}, nil
}

func (f *fakeDriver) DeleteVolume(
	_ context.Context, req *csiapi.DeleteVolumeRequest,
) (*csiapi.DeleteVolumeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deleted = append(f.deleted, req)
	if f.remove != nil {
		if err := f.remove(req); err != nil {
			return nil, err
		}
	}
	return &csiapi.DeleteVolumeResponse{}, nil
}

// failWith has CreateVolume fail with that code, or work again with codes.OK.
func (f *fakeDriver) failWith(code codes.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.create = nil
	if code != codes.OK {
		f.create = func(context.Context, *csiapi.CreateVolumeRequest) (*csiapi.Volume, error) {
			return nil, status.Error(code, "injected")
		}
	}
}

func (f *fakeDriver) last() *csiapi.CreateVolumeRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.created) == 0 {
		return nil
	}
	return f.created[len(f.created)-1]
}
