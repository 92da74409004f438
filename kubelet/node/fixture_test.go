package node_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeMachine returns the values that a test sets.
type fakeMachine struct {
	mu    sync.Mutex
	info  node.MachineInfo
	usage node.Usage
}

func newMachine() *fakeMachine {
	return &fakeMachine{
		info: node.MachineInfo{
			Cores: 4, Memory: 8 << 30, HugePages: map[int64]int64{2 << 20: 1 << 30},
			MachineID: "machine", SystemUUID: "system", BootID: "boot-1", Kernel: "6.1", OSImage: "Debian",
		},
		usage: node.Usage{
			MemoryAvailable: 4 << 30, DiskCapacity: 100 << 30, DiskFree: 50 << 30,
			InodeCapacity: 1000, InodesFree: 500, PIDCapacity: 1000, PIDs: 10,
		},
	}
}

func (m *fakeMachine) Info() (node.MachineInfo, error) { return m.info, nil }

func (m *fakeMachine) Usage() (node.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usage, nil
}

func (m *fakeMachine) set(change func(*node.Usage)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.usage)
}

// fakeRuntime is a runtime that can be unreachable, and whose network can be down.
type fakeRuntime struct {
	mu      sync.Mutex
	away    error
	network bool
	images  []*runtimeapi.Image
	asked   int // number of Status calls
}

func (r *fakeRuntime) set(change func(*fakeRuntime)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *fakeRuntime) Version(context.Context, *runtimeapi.VersionRequest, ...grpc.CallOption) (
	*runtimeapi.VersionResponse, error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.4.2"}, r.away
}

func (r *fakeRuntime) Status(context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption) (
	*runtimeapi.StatusResponse, error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			{Type: runtimeapi.NetworkReady, Status: r.network, Reason: "NoCNI", Message: "no config"},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{
			{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}}, {Name: ""},
		},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}, r.away
}

func (r *fakeRuntime) ListImages(context.Context, *runtimeapi.ListImagesRequest, ...grpc.CallOption) (
	*runtimeapi.ListImagesResponse, error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.ListImagesResponse{Images: r.images}, r.away
}

type fixture struct {
	*node.Manager
	client   *fake.Clientset
	machine  *fakeMachine
	runtime  *fakeRuntime
	recorder *record.FakeRecorder
	pressure []eviction.Condition
	features []string
	labels   map[string]string
	startups []node.Startup // what OnStartup was called with
	// configure, if set, changes what the Manager is made of.
	configure func(*node.Deps, *node.Config)
}

// run calls test in a synctest bubble with a running Manager; prepare may change the fixture before.
func run(t *testing.T, prepare func(*fixture), test func(*testing.T, *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{
			client: fake.NewClientset(), machine: newMachine(), runtime: &fakeRuntime{network: true},
			recorder: record.NewFakeRecorder(100),
		}
		if prepare != nil {
			prepare(f)
		}
		thresholds, err := eviction.ParseThresholds(eviction.Config{Hard: eviction.DefaultHard()})
		require.NoError(t, err)
		deps := node.Deps{
			Client: f.client, Runtime: f.runtime, Machine: f.machine, Recorder: f.recorder,
			Pressure:  func() []eviction.Condition { return f.pressure },
			OnStartup: func(s node.Startup) { f.startups = append(f.startups, s) },
		}
		config := node.Config{
			Name: "n1", IPs: []net.IP{net.ParseIP("10.0.0.1")}, Port: 10250, Version: "v1.36.3+berth.1",
			Thresholds: thresholds, DeclaredFeatures: f.features, Labels: f.labels,
		}
		if f.configure != nil {
			f.configure(&deps, &config)
		}
		f.Manager, err = node.New(deps, config)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Start(ctx) }()
		synctest.Wait()
		test(t, f)
		cancel()
		require.NoError(t, <-done)
	})
}

func (f *fixture) get(t *testing.T) *corev1.Node {
	t.Helper()
	n, err := f.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	require.NoError(t, err)
	return n
}

func (f *fixture) condition(t *testing.T, kind corev1.NodeConditionType) corev1.NodeCondition {
	t.Helper()
	for _, c := range f.get(t).Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	require.Fail(t, "no condition", kind)
	return corev1.NodeCondition{}
}

// writes returns how often the Node was created or patched.
func (f *fixture) writes() int {
	n := 0
	for _, action := range f.client.Actions() {
		if action.GetResource().Resource == "nodes" && (action.GetVerb() == "create" || action.GetVerb() == "patch") {
			n++
		}
	}
	return n
}

func (f *fixture) events() []string {
	var list []string
	for {
		select {
		case e := <-f.recorder.Events:
			list = append(list, e)
		default:
			return list
		}
	}
}
