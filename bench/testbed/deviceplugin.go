package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// DeviceResource is the resource of which a DevicePlugin has a few.
const DeviceResource corev1.ResourceName = "bench.berth.dev/device"

const devices = 4

// DevicePlugin is a device plugin in this process that measures its own time.
type DevicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	server *grpc.Server
	served chan error
	ended  chan struct{} // closed by Stop

	mu   sync.Mutex // guards took
	took time.Duration
}

// StartDevicePlugin starts a plugin and returns when the Node has its devices.
func StartDevicePlugin(ctx context.Context, c *Cluster, kubelet Kubelet, client kubernetes.Interface) (_ *DevicePlugin, err error) {
	dir := devicePlugins
	if kubelet == Berth {
		dir = filepath.Join(c.KubeletDir(kubelet), "device-plugins")
	}
	socket := filepath.Join(dir, "bench.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier plugin: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("start the device plugin: %w", err)
	}
	p := &DevicePlugin{server: grpc.NewServer(), served: make(chan error, 1), ended: make(chan struct{})}
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go func() { p.served <- p.server.Serve(listener) }()
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Stop())
		}
	}()
	if err := register(ctx, filepath.Join(dir, "kubelet.sock"), filepath.Base(socket)); err != nil {
		return nil, err
	}
	return p, waitDevices(ctx, client)
}

func register(ctx context.Context, kubelet, endpoint string) error {
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("register the device plugin: %w", err)
	}
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: string(DeviceResource),
	})
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("register the device plugin: %w", err)
	}
	return nil
}

func waitDevices(ctx context.Context, client kubernetes.Interface) error {
	changes, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + NodeName})
	if err != nil {
		return fmt.Errorf("watch the node: %w", err)
	}
	defer changes.Stop()
	for event := range changes.ResultChan() {
		if node, is := event.Object.(*corev1.Node); is && node.Status.Allocatable.Name(DeviceResource, "").Value() == devices {
			return nil
		}
	}
	return fmt.Errorf("wait for the node's devices: the watch ended: %w", ctx.Err())
}

// Stop ends the plugin.
func (p *DevicePlugin) Stop() error {
	close(p.ended)
	p.server.Stop()
	return <-p.served
}

// Took returns the time that the plugin has spent in calls.
func (p *DevicePlugin) Took() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.took
}

func (p *DevicePlugin) count(began time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took += time.Since(began)
}

// GetDevicePluginOptions asks for all calls that there are.
func (p *DevicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch sends the devices once: none ever changes.
func (p *DevicePlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	list := &pluginapi.ListAndWatchResponse{}
	for i := range devices {
		list.Devices = append(list.Devices, &pluginapi.Device{ID: fmt.Sprint("device-", i), Health: pluginapi.Healthy})
	}
	if err := stream.Send(list); err != nil {
		return err
	}
	select {
	case <-p.ended:
	case <-stream.Context().Done():
	}
	return nil
}

// GetPreferredAllocation prefers the first devices.
func (p *DevicePlugin) GetPreferredAllocation(
	_ context.Context, request *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	defer p.count(time.Now())
	response := &pluginapi.PreferredAllocationResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses,
			&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: container.AvailableDeviceIDs[:container.AllocationSize]})
	}
	return response, nil
}

// Allocate gives each container a device file and a variable.
func (p *DevicePlugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	defer p.count(time.Now())
	response := &pluginapi.AllocateResponse{}
	for range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs:    map[string]string{"BENCH_DEVICE": "yes"},
			Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/bench", HostPath: "/dev/null", Permissions: "rw"}},
		})
	}
	return response, nil
}

// PreStartContainer has nothing to do.
func (p *DevicePlugin) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	defer p.count(time.Now())
	return &pluginapi.PreStartContainerResponse{}, nil
}
