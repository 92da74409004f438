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

	"github.com/berth-dev/berth/kubelet/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeMachine has what a test gives it.
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

// fakeRuntime is a runtime that can be away, and whose network can be down.
type fakeRuntime struct {
	mu      sync.Mutex
	away    error
	network bool
	images  []*runtimeapi.Image
	asked   int // for its status
}

func (f *fakeRuntime) set(change func(*fakeRuntime)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeRuntime) Version(context.Context, *runtimeapi.VersionRequest, ...grpc.CallOption) (
	*runtimeapi.VersionResponse, error,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.4.2"}, f.away
}

func (f *fakeRuntime) Status(context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption) (
	*runtimeapi.StatusResponse, error,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			{Type: runtimeapi.NetworkReady, Status: f.network, Reason: "NoCNI", Message: "no config"},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{
			{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}}, {Name: ""},
		},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}, f.away
}

func (f *fakeRuntime) ListImages(context.Context, *runtimeapi.ListImagesRequest, ...grpc.CallOption) (
	*runtimeapi.ListImagesResponse, error,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ListImagesResponse{Images: f.images}, f.away
}

type fixture struct {
	*node.Manager
	client   *fake.Clientset
	machine  *fakeMachine
	runtime  *fakeRuntime
	recorder *record.FakeRecorder
	// thresholds are the Manager's, upstream's if nil.
	thresholds *node.Thresholds
}

// run calls test in a bubble with a Manager; prepare may change what it finds.
func run(t *testing.T, prepare func(*fixture), test func(*testing.T, *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &fixture{
			client: fake.NewClientset(), machine: newMachine(), runtime: &fakeRuntime{network: true},
			recorder: record.NewFakeRecorder(100),
		}
		if prepare != nil {
			prepare(b)
		}
		var err error
		b.Manager, err = node.New(node.Deps{Client: b.client, Runtime: b.runtime, Machine: b.machine, Recorder: b.recorder}, node.Config{
			Name: "n1", IPs: []net.IP{net.ParseIP("10.0.0.1")}, Port: 10250, Version: "v1.36.3+berth.1",
			Thresholds: b.thresholds,
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Start(ctx) }()
		synctest.Wait()
		test(t, b)
		cancel()
		require.NoError(t, <-done)
	})
}

func (b *fixture) get(t *testing.T) *corev1.Node {
	t.Helper()
	n, err := b.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	require.NoError(t, err)
	return n
}

func (b *fixture) condition(t *testing.T, kind corev1.NodeConditionType) corev1.NodeCondition {
	t.Helper()
	for _, c := range b.get(t).Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	require.Fail(t, "no condition", kind)
	return corev1.NodeCondition{}
}

// writes counts how often the Node was created or patched.
func (b *fixture) writes() int {
	n := 0
	for _, action := range b.client.Actions() {
		if action.GetResource().Resource == "nodes" && (action.GetVerb() == "create" || action.GetVerb() == "patch") {
			n++
		}
	}
	return n
}

func (b *fixture) events() []string {
	var list []string
	for {
		select {
		case e := <-b.recorder.Events:
			list = append(list, e)
		default:
			return list
		}
	}
}
