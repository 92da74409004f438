package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-dev/berth/internal/unixsock"
	"github.com/berth-dev/berth/volume/mounts"
)

// Fault is the planned outcome of one call.
type Fault struct {
	// Code is the error of the call. codes.OK means success.
	Code codes.Code
	// TakesEffect means that the call takes effect before it fails.
	TakesEffect bool
	// Hang means that the call returns only after its context has ended, and takes effect only if TakesEffect is set.
	Hang bool
}

// Config holds the settings of a Driver.
type Config struct {
	// Name is the driver's name, NodeID its name of the node.
	Name, NodeID string
	// Dir holds the sockets and the data of volumes: Dir/data/HANDLE.
	Dir string
	// Capabilities are those of the node service.
	Capabilities []csipb.NodeServiceCapability_RPC_Type
	// Topology and MaxVolumes are returned by NodeGetInfo.
	Topology   map[string]string
	MaxVolumes int64
	// Device is the block device of every block volume.
	Device string
	// PublishesNothing makes NodePublishVolume succeed without a target.
	PublishesNothing bool
	// NoUsage makes NodeGetVolumeStats respond without a usage.
	NoUsage bool
	// Type and Versions are sent with the registration; "CSIPlugin" and "1.0.0" if empty.
	Type     string
	Versions []string
}

// Driver is the fake. Its fields are set before Serve; its methods are safe for concurrent use.
type Driver struct {
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	Config Config
	// FailText, if not empty, is the error message with which all calls that change something fail.
	FailText string

	servers []*grpc.Server
	done    sync.WaitGroup

	mu        sync.Mutex // guards all below
	plan      func(call, volume string) Fault
	calls     []string
	requests  []any
	staged    map[string]string            // by volume, the path
	published map[string]map[string]string // by volume and target, the staging path
	health    []*csipb.VolumeHealth_VolumeHealthEntry
	notified  chan *registerapi.RegistrationStatus
}

// New returns a Driver.
func New(config Config) *Driver {
	if config.Type == "" {
		config.Type = registerapi.CSIPlugin
	}
	if config.Versions == nil {
		config.Versions = []string{"1.0.0"}
	}
	return &Driver{
		Config: config, staged: make(map[string]string), published: make(map[string]map[string]string),
		plan: func(string, string) Fault { return Fault{} }, notified: make(chan *registerapi.RegistrationStatus, 100),
	}
}

// Endpoint is the socket of the node service.
func (d *Driver) Endpoint() string { return filepath.Join(d.Config.Dir, "csi.sock") }

// Serve opens the node's socket, and the registration socket too if its path is not empty.
func (d *Driver) Serve(registration string) error {
	if err := os.MkdirAll(filepath.Join(d.Config.Dir, "data"), 0o755); err != nil {
		return fmt.Errorf("serve fake csi driver: %w", err)
	}
	if err := d.serve(d.Endpoint(), func(s *grpc.Server) { csipb.RegisterNodeServer(s, d) }); err != nil {
		return err
	}
	if registration == "" {
		return nil
	}
	return d.serve(registration, func(s *grpc.Server) { registerapi.RegisterRegistrationServer(s, d) })
}

func (d *Driver) serve(path string, register func(*grpc.Server)) error {
	_ = os.Remove(path)
	listener, err := unixsock.Listen(context.Background(), path)
	if err != nil {
		return fmt.Errorf("serve fake csi driver: %w", err)
	}
	server := grpc.NewServer()
	register(server)
	d.servers = append(d.servers, server)
	d.done.Go(func() { _ = server.Serve(listener) })
	return nil
}

// Stop closes and removes the sockets. Running calls end.
func (d *Driver) Stop() {
	for _, server := range d.servers {
		server.Stop()
	}
	d.servers = nil
	d.done.Wait()
}

// Plan sets the outcome of further calls. With nil all succeed.
func (d *Driver) Plan(plan func(call, volume string) Fault) {
	if plan == nil {
		plan = func(string, string) Fault { return Fault{} }
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan = plan
}

// SetMaxVolumes changes the limit that NodeGetInfo returns.
func (d *Driver) SetMaxVolumes(limit int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Config.MaxVolumes = limit
}

// FailNext plans these faults for the next calls of one kind, one after the other, and then none.
func (d *Driver) FailNext(call string, faults ...Fault) {
	var mu sync.Mutex
	d.Plan(func(name, _ string) Fault {
		mu.Lock()
		defer mu.Unlock()
		if name != call || len(faults) == 0 {
			return Fault{}
		}
		fault := faults[0]
		faults = faults[1:]
		return fault
	})
}

// Calls lists the calls that change something since the last Reset: "NodeStageVolume HANDLE".
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Last returns the latest request of this type, the zero value if there was none.
func Last[T any](d *Driver) (request T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range slices.Backward(d.requests) {
		if found, ok := one.(T); ok {
			return found
		}
	}
	return request
}

// Reset forgets the calls.
func (d *Driver) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls, d.requests = nil, nil
}

// Staged counts the volumes that are staged.
func (d *Driver) Staged() int { return len(d.StagedVolumes()) }

// StagedVolumes lists the volumes that are staged.
func (d *Driver) StagedVolumes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.staged))
}

// Published counts the targets.
func (d *Driver) Published() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, targets := range d.published {
		n += len(targets)
	}
	return n
}

// Notified receives the kubelet's responses to registrations.
func (d *Driver) Notified() <-chan *registerapi.RegistrationStatus { return d.notified }

// GetInfo implements the registration service.
func (d *Driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: d.Config.Type, Name: d.Config.Name, Endpoint: d.Endpoint(), SupportedVersions: d.Config.Versions,
	}, nil
}

// NotifyRegistrationStatus implements the registration service.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus) (
	*registerapi.RegistrationStatusResponse, error,
) {
	d.notified <- status
	return &registerapi.RegistrationStatusResponse{}, nil
}

// call records a call, and calls effect as planned.
func (d *Driver) call(ctx context.Context, name, volume string, request any, effect func() error) error {
	d.mu.Lock()
	d.calls = append(d.calls, name+" "+volume)
	d.requests = append(d.requests, request)
	plan := d.plan
	d.mu.Unlock()
	if d.FailText != "" {
		return status.Error(codes.Internal, d.FailText)
	}
	fault := plan(name, volume)
	if fault.Code == codes.OK && !fault.Hang || fault.TakesEffect {
		d.mu.Lock()
		err := ctx.Err() // a call that begins after its caller has given up must not undo the caller's next call
		if err == nil {
			err = effect()
		}
		d.mu.Unlock()
		if err != nil {
			return err
		}
	}
	if fault.Hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if fault.Code != codes.OK {
		return status.Errorf(fault.Code, "planned failure of %s", name)
	}
	return nil
}

func bind(from, to string) error {
	mounter := mounts.Syscalls{}
	if is, err := mounter.IsMountPoint(to); err == nil && is {
		return nil
	}
	if err := mounter.Mount(from, to, "", []string{"bind"}); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

func unbind(ctx context.Context, path string) error {
	if err := mounts.UnmountPoint(ctx, mounts.Syscalls{}, path); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}
