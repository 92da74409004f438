package devices_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/kubelet/resources/devices"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
	"github.com/berth-dev/berth/kubelet/resources/rejection"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testTimeout = time.Minute
	gpu         = "example.com/gpu"
)

// plugin is a device plugin of the test's own process, with a real server on a real socket.
type plugin struct {
	pluginapi.UnsafeDevicePluginServer
	options pluginapi.DevicePluginOptions
	fail    error
	during  func()        // called while devices are allocated
	held    chan struct{} // if set, no devices are listed until it is closed

	mu      sync.Mutex // guards all below
	list    []*pluginapi.Device
	changed chan struct{} // closed when list changes
	calls   []string
	prefers []string
	server  *grpc.Server
	// startTimeout is how much time the last PreStartContainer had, 0 for no limit.
	startTimeout time.Duration
}

func newPlugin(ids ...string) *plugin {
	p := &plugin{changed: make(chan struct{})}
	for _, id := range ids {
		p.list = append(p.list, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return p
}

func (p *plugin) note(call string, ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		call += " " + id
	}
	p.calls = append(p.calls, call)
}

func (p *plugin) set(list ...*pluginapi.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = list
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &p.options, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if p.held != nil {
		select {
		case <-p.held:
		case <-stream.Context().Done():
			return nil
		}
	}
	for {
		p.mu.Lock()
		list, changed := p.list, p.changed
		p.mu.Unlock()
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	p.note("prefer of", request.ContainerRequests[0].AvailableDeviceIDs)
	p.mu.Lock()
	for _, id := range request.ContainerRequests[0].MustIncludeDeviceIDs {
		p.calls[len(p.calls)-1] += ", must " + id
	}
	p.mu.Unlock()
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: p.prefers}}}, nil
}

func (p *plugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := request.ContainerRequests[0].DevicesIds
	p.note("allocate", ids)
	if p.during != nil {
		p.during()
	}
	if p.fail != nil {
		return nil, p.fail
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs: map[string]string{"GPU": ids[0]}, Annotations: map[string]string{"a": "b"},
		Devices:    []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gpu", HostPath: "/dev/null", Permissions: "rw"}},
		Mounts:     []*pluginapi.Mount{{ContainerPath: "/lib/gpu", HostPath: "/usr/lib", ReadOnly: true}},
		CdiDevices: []*pluginapi.CDIDevice{{Name: "example.com/gpu=" + ids[0]}},
	}}}, nil
}

func (p *plugin) PreStartContainer(ctx context.Context, request *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.note("start", request.DevicesIds)
	if deadline, has := ctx.Deadline(); has {
		p.startTimeout = time.Until(deadline)
	}
	return &pluginapi.PreStartContainerResponse{}, nil
}

// fixture is a Manager in a directory of its own.
type fixture struct {
	*devices.Manager
	t       *testing.T
	root    string
	clock   *testclock.FakeClock
	changes chan struct{}
	health  chan types.UID
	stop    func()
}

func newFixture(t *testing.T) *fixture {
	root, err := os.MkdirTemp("", "devices") // t.TempDir may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	f := &fixture{t: t, root: root, clock: testclock.NewFakeClock(time.Now())}
	f.start()
	return f
}

// start starts a Manager, after the end of the one before.
func (f *fixture) start() {
	f.t.Helper()
	if f.stop != nil {
		f.stop()
	}
	f.changes, f.health = make(chan struct{}, 1000), make(chan types.UID, 1000)
	var err error
	f.Manager, err = devices.New(devices.Deps{
		NUMANodes: []int{0, 1}, Metrics: metrics.New(), Clock: f.clock,
		OnCapacityChanged: func() { f.changes <- struct{}{} }, OnHealthChanged: func(uid types.UID) { f.health <- uid },
	}, f.root)
	require.NoError(f.t, err)
	require.NoError(f.t, f.Open())
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	manager := f.Manager
	go func() { done <- manager.Start(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(f.t, <-done)
	})
	f.t.Cleanup(f.stop)
	f.wait("the socket", func() bool { _, err := os.Stat(filepath.Join(f.root, devices.Dir, "kubelet.sock")); return err == nil })
}

// wait waits until the condition holds, which is checked after each change of the capacity.
func (f *fixture) wait(what string, done func() bool) {
	f.t.Helper()
	deadline := time.After(testTimeout)
	for !done() {
		select {
		case <-f.changes:
		case <-time.After(5 * time.Millisecond): // of a socket there is no event
		case <-deadline:
			f.t.Fatal("waited too long for " + what)
		}
	}
}

// serve serves a plugin and registers it.
func (f *fixture) serve(p *plugin, name string) {
	f.t.Helper()
	dir := filepath.Join(f.root, devices.Dir)
	path := filepath.Join(dir, name+".sock")
	require.NoError(f.t, os.MkdirAll(filepath.Dir(path), 0o750))
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	require.NoError(f.t, err)
	p.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(p.server, p)
	served := make(chan struct{})
	go func() { defer close(served); _ = p.server.Serve(listener) }()
	f.t.Cleanup(func() { p.server.Stop(); <-served })
	require.NoError(f.t, f.register(gpu, name+".sock", pluginapi.Version))
}

func (f *fixture) register(resource, endpoint, version string) error {
	conn, err := grpc.NewClient("unix:"+filepath.Join(f.root, devices.Dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(f.t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), testTimeout)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{Version: version, Endpoint: endpoint, ResourceName: resource},
		grpc.WaitForReady(true))
	return err
}

func (f *fixture) waitCapacity(capacity, allocatable int64) {
	f.t.Helper()
	f.wait("the capacity", func() bool {
		all, free := f.Resources()
		return all.Name(gpu, resource.DecimalSI).Value() == capacity && free.Name(gpu, resource.DecimalSI).Value() == allocatable
	})
}

func podOf(uid string, counts ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid}}
	for i, count := range counts {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: string(rune('a' + i)), Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{gpu: resource.MustParse(count)},
		}})
	}
	return pod
}

func (f *fixture) admit(pod *corev1.Pod, nodes ...int) error {
	f.Begin()
	for i := range pod.Spec.InitContainers {
		if err := f.Allocate(pod, &pod.Spec.InitContainers[i], hints.Hint{Nodes: hints.MaskOf(nodes...)}); err != nil {
			f.Rollback()
			return err
		}
	}
	for i := range pod.Spec.Containers {
		if err := f.Allocate(pod, &pod.Spec.Containers[i], hints.Hint{Nodes: hints.MaskOf(nodes...)}); err != nil {
			f.Rollback()
			return err
		}
	}
	return nil
}

func (f *fixture) ids(uid, container string) []string {
	var ids []string
	for _, d := range f.Of(uid, container) {
		ids = append(ids, d.ID)
	}
	return ids
}

func (f *fixture) prepare(pod *corev1.Pod) (*devices.Options, error) {
	return f.Prepare(f.t.Context(), pod, &pod.Spec.Containers[0])
}

func TestDevicesAreGivenToContainers(t *testing.T) {
	f, p := newFixture(t), newPlugin("x", "y", "z")
	p.options.PreStartRequired = true
	f.serve(p, "gpu")
	f.waitCapacity(3, 3)
	pod := podOf("p", "2", "1")
	require.NoError(t, f.admit(pod))
	require.Equal(t, []string{"x", "y"}, f.ids("p", "a"))
	require.Equal(t, []string{"z"}, f.ids("p", "b"))
	require.EqualError(t, f.admit(podOf("q", "1")), "requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0")

	for range 2 { // of a restart of the container, too
		options, err := f.prepare(pod)
		require.NoError(t, err)
		require.Equal(t, map[string]string{"GPU": "x"}, options.Envs)
		require.Equal(t, "/dev/null", options.Devices[0].HostPath)
		require.True(t, options.Mounts[0].Readonly)
		require.Equal(t, "example.com/gpu=x", options.CDIDevices[0].Name)
		require.Equal(t, map[string]string{"a": "b"}, options.Annotations)
	}
	require.Equal(t, []string{"allocate x y", "start x y", "start x y"}, p.calls)
	require.NoError(t, f.Release("p"))
	require.NoError(t, f.admit(podOf("q", "3")))
	options, err := f.Prepare(t.Context(), &corev1.Pod{}, &corev1.Container{})
	require.NoError(t, err)
	require.Nil(t, options, "of a container without devices")
}

// TestDevicesTakenBackWhileAContainerStarts: the start fails, and the manager goes on.
func TestDevicesTakenBackWhileAContainerStarts(t *testing.T) {
	f, p := newFixture(t), newPlugin("x")
	p.options.PreStartRequired = true
	p.during = func() { require.NoError(t, f.Release("p")) }
	f.serve(p, "gpu")
	f.waitCapacity(1, 1)
	pod := podOf("p", "1")
	require.NoError(t, f.admit(pod))
	_, err := f.prepare(pod)
	require.ErrorContains(t, err, "were taken back")
	p.during = nil
	require.NoError(t, f.admit(podOf("q", "1")))
}

func TestAllocationsOutliveTheProcess(t *testing.T) {
	f, p := newFixture(t), newPlugin("x", "y")
	f.serve(p, "gpu")
	f.waitCapacity(2, 2)
	pod, reserved := podOf("p", "1"), podOf("r", "1")
	require.NoError(t, f.admit(pod))
	require.NoError(t, f.admit(reserved))
	_, err := f.prepare(pod)
	require.NoError(t, err)
	f.start()
	require.Equal(t, []string{"x"}, f.ids("p", "a"))
	options, err := f.prepare(pod)
	require.NoError(t, err)
	require.Equal(t, "x", options.Envs["GPU"], "without its plugin")
	require.EqualError(t, f.admit(podOf("q", "1")), "no healthy devices present; cannot allocate unhealthy devices example.com/gpu")
	_, err = os.Stat(filepath.Join(f.root, devices.Dir, "gpu.sock"))
	require.ErrorIs(t, err, os.ErrNotExist, "so that the plugin registers again")

	f.serve(newPlugin("x", "y"), "gpu2")
	f.waitCapacity(2, 2)
	options, err = f.prepare(reserved)
	require.NoError(t, err, "what was reserved is chosen again")
	require.Equal(t, "y", options.Envs["GPU"])
}

// TestFilesOfPluginsAreLeftAlone: at the start the kubelet removes the sockets that an earlier one and its plugins have left, and nothing else.
func TestFilesOfPluginsAreLeftAlone(t *testing.T) {
	f := newFixture(t)
	require.True(t, f.First())
	f.serve(newPlugin("x"), "gpu")
	f.waitCapacity(1, 1)
	dir := filepath.Join(f.root, devices.Dir)
	file, link := filepath.Join(dir, "state.json"), filepath.Join(dir, "link.sock")
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	require.NoError(t, os.Symlink("gpu.sock", link))
	f.start()
	require.False(t, f.First())
	require.FileExists(t, file, "a plugin may keep it there")
	for _, path := range []string{filepath.Join(dir, "gpu.sock"), link} {
		_, err := os.Lstat(path)
		require.ErrorIs(t, err, os.ErrNotExist, path)
	}
}

// TestNoContainerGetsDevicesThatAPodMayHave: the file that says which devices the running Pod p has is damaged.
func TestNoContainerGetsDevicesThatAPodMayHave(t *testing.T) {
	f := newFixture(t)
	f.serve(newPlugin("x", "y"), "gpu")
	f.waitCapacity(2, 2)
	pod := podOf("p", "1")
	pod.Namespace, pod.Name = "ns", "training"
	require.NoError(t, f.admit(pod))
	_, err := f.prepare(pod)
	require.NoError(t, err)
	path := filepath.Join(f.root, devices.Dir, devices.StateFile)
	require.NoError(t, os.Truncate(path, 10))

	f.start()
	aside, err := statefile.Asides(path)
	require.NoError(t, err)
	require.Len(t, aside, 1)
	f.Readmit(pod)
	f.Readmit(podOf("none", "0"))
	f.serve(newPlugin("x", "y"), "gpu2")
	f.waitCapacity(2, 2)
	const unknown = "which devices example.com/gpu these Pods have is not known: ns/training; delete them first"
	require.ErrorContains(t, f.admit(podOf("q", "1")), unknown)
	var rejected *rejection.Error
	_, err = f.prepare(pod)
	require.ErrorAs(t, err, &rejected, "a container of its own that starts again")
	require.Contains(t, rejected.Message, unknown)
	require.NoError(t, f.Release("p"))
	require.NoError(t, f.admit(podOf("q", "1")))

	f.start()
	f.Readmit(podOf("q", "1"))
	f.serve(newPlugin("x", "y"), "gpu3")
	f.waitCapacity(2, 2)
	require.NoError(t, f.admit(podOf("r", "1")), "the new file is not damaged")
}

// TestSandboxesNeedTheDevicesOfAnEarlierProcess is about the boot of a machine: its plugins register anew, and devices may be gone.
func TestSandboxesNeedTheDevicesOfAnEarlierProcess(t *testing.T) {
	f, p := newFixture(t), newPlugin("x", "y", "z")
	f.serve(p, "gpu")
	f.waitCapacity(3, 3)
	for _, uid := range []string{"p", "q", "r"} {
		require.NoError(t, f.admit(podOf(uid, "1")))
		_, err := f.prepare(podOf(uid, "1"))
		require.NoError(t, err)
	}
	p.server.Stop()
	f.waitCapacity(3, 0)
	require.NoError(t, f.PreparePod("p"), "this process has admitted it")

	f.start()
	var rejected *rejection.Error
	require.ErrorAs(t, f.PreparePod("p"), &rejected)
	require.Equal(t, rejection.Error{Reason: rejection.Unexpected,
		Message: "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/gpu, which is unexpected"}, *rejected)
	p = newPlugin("x", "y")
	f.serve(p, "gpu2")
	f.waitCapacity(2, 2)
	require.NoError(t, f.PreparePod("p"))
	require.ErrorContains(t, f.PreparePod("r"), "previously allocated devices are no longer healthy", "its device is gone")
	p.server.Stop()
	f.waitCapacity(2, 0)
	require.NoError(t, f.PreparePod("p"), "a later sandbox")
	require.Error(t, f.PreparePod("q"))
	require.NoError(t, f.Release("q"))
	require.NoError(t, f.PreparePod("q"), "it has no devices any more")
	f.clock.Step(6 * time.Minute)
	f.waitCapacity(0, 0)
	require.ErrorContains(t, f.PreparePod("r"), "cannot allocate unregistered device example.com/gpu")
}

func TestDevicesThatFallIll(t *testing.T) {
	f, p := newFixture(t), newPlugin("x", "y")
	f.serve(p, "gpu")
	f.waitCapacity(2, 2)
	pod := podOf("p", "1")
	require.NoError(t, f.admit(pod))
	_, err := f.prepare(pod)
	require.NoError(t, err)
	p.set(&pluginapi.Device{ID: "x", Health: pluginapi.Unhealthy}, &pluginapi.Device{ID: "y", Health: pluginapi.Healthy})
	f.waitCapacity(2, 1)
	require.Equal(t, types.UID("p"), <-f.health)
	require.Equal(t, []corev1.ResourceStatus{{Name: gpu, Resources: []corev1.ResourceHealth{
		{ResourceID: "x", Health: corev1.ResourceHealthStatusUnhealthy},
	}}}, f.Status("p", "a"))
	require.ErrorContains(t, f.admit(pod), "previously allocated devices are no longer healthy")
	require.NoError(t, f.Release("p"))
	require.NoError(t, f.admit(podOf("q", "1")))
	require.Equal(t, []string{"y"}, f.ids("q", "a"))
}

func TestAPluginThatIsGone(t *testing.T) {
	f, p := newFixture(t), newPlugin("x")
	f.serve(p, "gpu")
	f.waitCapacity(1, 1)
	p.server.Stop()
	f.waitCapacity(1, 0)
	require.ErrorContains(t, f.admit(podOf("p", "1")), "no healthy devices present")
	f.serve(newPlugin("x", "y"), "again")
	f.waitCapacity(2, 2)
	f.clock.Step(6 * time.Minute)
	f.waitCapacity(2, 2)
}

// TestAPluginThatRegistersAgain: until it has listed its devices, those that were known count.
func TestAPluginThatRegistersAgain(t *testing.T) {
	f, p := newFixture(t), newPlugin("x", "y")
	f.serve(p, "gpu")
	f.waitCapacity(2, 2)
	again := newPlugin("x", "y", "z")
	again.held = make(chan struct{})
	f.serve(again, "again")
	all, free := f.Resources()
	require.EqualValues(t, 2, all.Name(gpu, resource.DecimalSI).Value())
	require.EqualValues(t, 2, free.Name(gpu, resource.DecimalSI).Value())
	pod := podOf("p", "1")
	require.NoError(t, f.admit(pod))
	_, err := f.prepare(pod)
	require.NoError(t, err)
	require.Equal(t, []string{"allocate x"}, again.calls)
	close(again.held)
	f.waitCapacity(3, 3)

	again.server.Stop()
	f.waitCapacity(3, 0)
	last := newPlugin("x")
	last.held = make(chan struct{})
	f.serve(last, "last")
	all, free = f.Resources()
	require.EqualValues(t, 3, all.Name(gpu, resource.DecimalSI).Value())
	require.Zero(t, free.Name(gpu, resource.DecimalSI).Value(), "those of a plugin that was gone")
	close(last.held)
	f.waitCapacity(1, 1)
}

// TestAContainerWaitsForThePreparationOfItsDevices: the plugin wants to prepare them for each start, and is gone when a container starts again.
func TestAContainerWaitsForThePreparationOfItsDevices(t *testing.T) {
	f, p := newFixture(t), newPlugin("x")
	p.options.PreStartRequired = true
	f.serve(p, "gpu")
	f.waitCapacity(1, 1)
	pod := podOf("p", "1")
	require.NoError(t, f.admit(pod))
	_, err := f.prepare(pod)
	require.NoError(t, err)
	p.server.Stop()
	f.waitCapacity(1, 0)
	_, err = f.prepare(pod)
	require.ErrorContains(t, err, "device plugin example.com/gpu: PreStartContainer: the device plugin is not connected")
	var final *rejection.Error
	require.NotErrorAs(t, err, &final, "it is tried again")
	again := newPlugin("x")
	again.options.PreStartRequired = true
	f.serve(again, "again")
	f.waitCapacity(1, 1)
	_, err = f.prepare(pod)
	require.NoError(t, err)
	require.Equal(t, []string{"start x"}, again.calls)
}

func TestAResourceWithoutPluginEnds(t *testing.T) {
	f, p := newFixture(t), newPlugin("x")
	f.serve(p, "gpu")
	f.waitCapacity(1, 1)
	p.server.Stop()
	f.waitCapacity(1, 0)
	f.clock.Step(6 * time.Minute)
	f.waitCapacity(0, 0)
	all, _ := f.Resources()
	require.Contains(t, all, corev1.ResourceName(gpu), "the Node's status says 0")
}

func TestRegistrationsThatAreRefused(t *testing.T) {
	f := newFixture(t)
	require.ErrorContains(t, f.register(gpu, "gpu.sock", "v1alpha"), `API version "v1alpha" is not supported by kubelet: want v1beta1`)
	require.ErrorContains(t, f.register("gpu", "gpu.sock", pluginapi.Version), "invalid name of resource")
	require.ErrorContains(t, f.register("gpu.kubernetes.io/a", "gpu.sock", pluginapi.Version), "invalid name of resource")
	require.ErrorContains(t, f.register(gpu, "../gpu.sock", pluginapi.Version), "want the path of a socket")
	require.ErrorContains(t, f.register(gpu, "", pluginapi.Version), "want the path of a socket")
	all, _ := f.Resources()
	require.Empty(t, all)
}

func TestThePluginsPreference(t *testing.T) {
	f, p := newFixture(t), newPlugin("w", "x", "y", "z")
	p.options.GetPreferredAllocationAvailable, p.prefers = true, []string{"z", "x"}
	f.serve(p, "gpu")
	f.waitCapacity(4, 4)
	pod := podOf("p", "2")
	require.NoError(t, f.admit(pod))
	other := podOf("q", "1")
	require.NoError(t, f.admit(other))
	require.Equal(t, []string{"y"}, f.ids("q", "a"))
	_, err := f.prepare(pod)
	require.NoError(t, err)
	require.Equal(t, []string{"prefer of w x z", "allocate x z"}, p.calls)
	require.Equal(t, []string{"x", "z"}, f.ids("p", "a"))
	_, err = f.prepare(other)
	require.NoError(t, err)
	require.Equal(t, []string{"y"}, f.ids("q", "a"), "what others have cannot be preferred")
}

// newRefusing returns a Manager that has admitted a Pod with the one device of a plugin that refuses to allocate it.
func newRefusing(t *testing.T) (*fixture, *plugin, *corev1.Pod) {
	f, p := newFixture(t), newPlugin("x")
	p.fail = errors.New("on fire")
	f.serve(p, "gpu")
	f.waitCapacity(1, 1)
	pod := podOf("p", "1")
	require.NoError(t, f.admit(pod))
	return f, p, pod
}

func TestAPluginThatRefusesFailsThePod(t *testing.T) {
	f, p, pod := newRefusing(t)
	_, err := f.prepare(pod)
	var refused *rejection.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, rejection.Unexpected, refused.Reason)
	require.ErrorContains(t, err, "on fire")
	p.server.Stop()
	f.waitCapacity(1, 0)
	_, err = f.prepare(pod)
	require.ErrorContains(t, err, "the device plugin is not connected")
	require.NotErrorAs(t, err, &refused, "it may come back")
}

func TestDevicesOnNUMANodes(t *testing.T) {
	f, p := newFixture(t), newPlugin()
	on := func(id string, nodes ...int64) *pluginapi.Device {
		d := &pluginapi.Device{ID: id, Health: pluginapi.Healthy, Topology: &pluginapi.TopologyInfo{}}
		for _, node := range nodes {
			d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: node})
		}
		return d
	}
	p.list = []*pluginapi.Device{on("a", 0), on("b", 1), on("c", 1), on("d", 7)}
	f.serve(p, "gpu")
	f.waitCapacity(4, 4)
	pod := podOf("p", "2")
	f.Begin()
	require.Equal(t, hints.ByResource{gpu: {
		{Nodes: hints.MaskOf(1), Preferred: true}, {Nodes: hints.MaskOf(0, 1)},
	}}, f.Hints(pod, &pod.Spec.Containers[0]))
	require.Equal(t, f.Hints(pod, &pod.Spec.Containers[0]), f.PodHints(pod))
	require.NoError(t, f.admit(pod, 1))
	require.Equal(t, []string{"b", "c"}, f.ids("p", "a"))
	require.Equal(t, []int{1}, f.Of("p", "a")[0].Nodes)
}

func TestContainersReuseTheDevicesOfInitContainers(t *testing.T) {
	f := newFixture(t)
	f.serve(newPlugin("x", "y", "z"), "gpu")
	f.waitCapacity(3, 3)
	pod := podOf("p", "2", "1")
	pod.Spec.InitContainers = podOf("p", "3").Spec.Containers
	pod.Spec.InitContainers[0].Name = "init"
	require.NoError(t, f.admit(pod))
	require.Equal(t, []string{"x", "y", "z"}, f.ids("p", "init"))
	require.Equal(t, []string{"x", "y"}, f.ids("p", "a"))
	require.Equal(t, []string{"z"}, f.ids("p", "b"))
}

// TestDevicesOfInitContainersAreReusedAfterARestart: the process that admitted the Pod ended before the plugin allocated anything.
func TestDevicesOfInitContainersAreReusedAfterARestart(t *testing.T) {
	f := newFixture(t)
	f.serve(newPlugin("x", "y"), "gpu")
	f.waitCapacity(2, 2)
	pod := podOf("p", "1", "1")
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{gpu: resource.MustParse("2")},
	}}}
	require.NoError(t, f.admit(pod))
	f.start()
	f.serve(newPlugin("x", "y"), "gpu")
	f.waitCapacity(2, 2)
	_, err := f.Prepare(t.Context(), pod, &pod.Spec.InitContainers[0])
	require.NoError(t, err)
	require.Equal(t, []string{"x", "y"}, f.ids("p", "init"))
	for i := range pod.Spec.Containers {
		_, err = f.Prepare(t.Context(), pod, &pod.Spec.Containers[i])
		require.NoError(t, err)
	}
	require.ElementsMatch(t, []string{"x", "y"}, append(f.ids("p", "a"), f.ids("p", "b")...), "each has one of its own")
	require.Error(t, f.admit(podOf("q", "1")), "none is free")
}

func TestResourcesOfClaimsAreNoPlugins(t *testing.T) {
	f := newFixture(t)
	f.serve(newPlugin("x"), "gpu")
	f.waitCapacity(1, 1)
	pod := podOf("p", "5")
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "a", ResourceName: gpu, RequestName: "r"}},
	}
	require.NoError(t, f.admit(pod))
	require.Empty(t, f.ids("p", "a"))
}

// TestStateOfUpstream reads a file that upstream's kubelet 1.36.3 has written, and writes the same.
func TestStateOfUpstream(t *testing.T) {
	golden, err := os.ReadFile("testdata/upstream.json")
	require.NoError(t, err)
	f := newFixture(t)
	f.stop()
	path := filepath.Join(f.root, devices.Dir, devices.StateFile)
	require.NoError(t, os.WriteFile(path, golden, 0o600))
	f.start()
	require.Equal(t, []string{"a", "b", "c"}, f.ids("uid-1", "c"))
	require.Equal(t, []string{"d"}, f.ids("uid-2", "d"))
	pod := podOf("uid-2", "1")
	pod.Spec.Containers[0].Name = "d"
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/dev": resource.MustParse("1")}
	options, err := f.prepare(pod)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"K": "V"}, options.Envs)
	require.NoError(t, f.Release("uid-1"))
	require.NoError(t, f.Release("uid-2"))
	f.start()
	require.Empty(t, f.Pods())
}
