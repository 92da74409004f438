package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	maxWait      = 6 * time.Minute
	testTimeout  = time.Minute
	pollInterval = time.Millisecond
)

// fakeStorage is disks in memory, as a plugin. It judges: no exclusive disk is ever on two nodes.
type fakeStorage struct {
	mu       sync.Mutex
	on       map[string]map[types.NodeName]bool // by disk
	calls    []string
	attach   func(disk string, node types.NodeName) (done bool, err error) // what happens instead, if not nil
	detach   func(disk string, node types.NodeName) (done bool, err error)
	block    chan struct{} // if not nil, calls wait until it is closed
	problems []string
	verify   func(disk string, node types.NodeName) operationexecutor.Verdict
}

var _ operationexecutor.AttachablePlugin = (*fakeStorage)(nil)

func newFakeStorage() *fakeStorage { return &fakeStorage{on: make(map[string]map[types.NodeName]bool)} }

func (s *fakeStorage) Name() string { return "test/disk" }

func (s *fakeStorage) CanAttach(spec *volume.Spec) (bool, error) {
	return spec.PV != nil && spec.PV.Spec.GCEPersistentDisk != nil, nil
}

func (s *fakeStorage) VolumeName(spec *volume.Spec) (string, error) { return spec.PV.Name, nil }

func (s *fakeStorage) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	disk := spec.PV.Name
	hold := s.begin("attach " + disk + " " + string(node))
	if hold != nil {
		<-hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	done, err := true, error(nil)
	if s.attach != nil {
		done, err = s.attach(disk, node)
	}
	if done {
		if s.on[disk] == nil {
			s.on[disk] = make(map[types.NodeName]bool)
		}
		s.on[disk][node] = true
		if len(s.on[disk]) > 1 && !operationexecutor.IsMultiAttachAllowed(spec) {
			s.problems = append(s.problems, fmt.Sprintf("exclusive %s is on %v", disk, s.on[disk]))
		}
	}
	return "/dev/" + disk, err
}

func (s *fakeStorage) Detach(_ context.Context, disk string, node types.NodeName) error {
	hold := s.begin("detach " + disk + " " + string(node))
	if hold != nil {
		<-hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	done, err := true, error(nil)
	if s.detach != nil {
		done, err = s.detach(disk, node)
	}
	if done {
		delete(s.on[disk], node)
	}
	return err
}

func (s *fakeStorage) Verify(_ context.Context, volumes []operationexecutor.AttachedVolume, node types.NodeName,
) (map[corev1.UniqueVolumeName]operationexecutor.Verdict, error) {
	s.begin("verify " + string(node))
	s.mu.Lock()
	defer s.mu.Unlock()
	verdicts := make(map[corev1.UniqueVolumeName]operationexecutor.Verdict)
	for _, at := range volumes {
		if s.verify == nil {
			return nil, errors.New("storage does not answer")
		}
		verdicts[at.VolumeName] = s.verify(at.VolumeSpec.PV.Name, node)
	}
	return verdicts, nil
}

func (s *fakeStorage) begin(call string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	return s.block
}

func (s *fakeStorage) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (s *fakeStorage) withLock(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// fakeStatuses is the API server's nodes: an updater writes their lists, and detaches read them.
type fakeStatuses struct {
	mu      sync.Mutex
	actual  *cache.Actual
	lists   map[types.NodeName][]corev1.AttachedVolume
	inUse   map[types.NodeName][]corev1.UniqueVolumeName
	gone    map[types.NodeName]bool
	writes  map[types.NodeName]int
	fail    func(types.NodeName) error
	block   chan struct{} // if not nil, writes wait until it is closed
	blocked int           // how many writes have begun to wait
	written func(types.NodeName)
}

func (s *fakeStatuses) UpdateNodeStatuses(ctx context.Context) error {
	for _, node := range s.actual.GetNodesToUpdateStatusFor() {
		if err := s.UpdateNodeStatusForNode(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

func (s *fakeStatuses) UpdateNodeStatusForNode(_ context.Context, node types.NodeName) error {
	flagged, list := s.actual.GetVolumesToReportAttachedForNode(node)
	if !flagged {
		return nil
	}
	s.mu.Lock()
	hold := s.block
	if hold != nil {
		s.blocked++
	}
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	s.mu.Lock()
	s.writes[node]++
	if s.fail != nil {
		if err := s.fail(node); err != nil {
			s.mu.Unlock()
			s.actual.SetNodeStatusUpdateNeeded(node)
			return err
		}
	}
	s.lists[node] = list
	written := s.written
	s.mu.Unlock()
	if written != nil {
		written(node)
	}
	return nil
}

func (s *fakeStatuses) get(_ context.Context, name types.NodeName) (*corev1.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone[name] {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, string(name))
	}
	return &corev1.Node{Status: corev1.NodeStatus{VolumesInUse: s.inUse[name]}}, nil
}

// hold lets writes wait from now on; open ends that.
func (s *fakeStatuses) hold() (open func()) {
	hold := make(chan struct{})
	s.withLock(func() { s.block, s.blocked = hold, 0 })
	return func() {
		s.withLock(func() { s.block = nil })
		close(hold)
	}
}

// isHolding reports whether a write waits.
func (s *fakeStatuses) isHolding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked > 0
}

func (s *fakeStatuses) withLock(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *fakeStatuses) hasVolume(node types.NodeName, disk string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.lists[node] {
		if at.Name == unique(disk) {
			return true
		}
	}
	return false
}

// fixture is everything around a reconciler.
type fixture struct {
	t        testing.TB
	clock    *testclock.FakeClock
	storage  *fakeStorage
	desired  *cache.Desired
	actual   *cache.Actual
	executor *operationexecutor.Executor
	statuses *fakeStatuses
	events   *record.FakeRecorder
	nodes    toolscache.Indexer
	engine   *reconciler.Engine
	forced   chan string
	pods     int
}

func newFixture(t testing.TB, change ...func(*reconciler.Deps, *reconciler.Config)) *fixture {
	w := &fixture{
		t: t, clock: testclock.NewFakeClock(time.Now()), storage: newFakeStorage(), events: record.NewFakeRecorder(100000),
		nodes:  toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{}),
		forced: make(chan string, 100),
	}
	plugins := operationexecutor.Plugins{w.storage}
	w.desired = cache.NewDesiredStateOfWorld(plugins)
	var err error
	w.actual, err = cache.NewActualStateOfWorld(cache.Deps{Plugins: plugins, Clock: w.clock})
	require.NoError(t, err)
	w.statuses = &fakeStatuses{
		actual: w.actual, lists: make(map[types.NodeName][]corev1.AttachedVolume), gone: make(map[types.NodeName]bool),
		inUse: make(map[types.NodeName][]corev1.UniqueVolumeName), writes: make(map[types.NodeName]int),
	}
	w.executor, err = operationexecutor.NewOperationExecutor(operationexecutor.Deps{
		Plugins: plugins, Nodes: w.statuses.get, Recorder: w.events, Clock: w.clock,
	}, operationexecutor.Config{})
	require.NoError(w.t, err)
	deps := reconciler.Deps{
		Desired: w.desired, Actual: w.actual, Executor: w.executor, Updater: w.statuses, Recorder: w.events, Clock: w.clock,
		OnForcedDetach: func(reason string) { w.forced <- reason }, Nodes: corelisters.NewNodeLister(w.nodes),
	}
	config := reconciler.Config{LoopPeriod: time.Hour, MaxWaitForUnmount: maxWait}
	for _, f := range change {
		f(&deps, &config)
	}
	w.engine, err = reconciler.New(deps, config)
	require.NoError(t, err)
	return w
}

// start runs the reconciler until the test ends.
func (w *fixture) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.engine.Start(ctx) }()
	w.t.Cleanup(func() { cancel(); require.NoError(w.t, <-done) })
}

func (w *fixture) node(name types.NodeName, change ...func(*corev1.Node)) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(name)}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(node)
	}
	require.NoError(w.t, w.nodes.Update(node))
	w.desired.AddNode(name)
	w.engine.NodeChanged(name)
}

func (w *fixture) deleteNode(name types.NodeName) {
	node, _, err := w.nodes.GetByKey(string(name))
	require.NoError(w.t, err)
	require.NoError(w.t, w.nodes.Delete(node))
	w.statuses.withLock(func() { w.statuses.gone[name] = true })
	w.engine.NodeChanged(name)
}

func disk(name string, modes ...corev1.PersistentVolumeAccessMode) *volume.Spec {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.AccessModes = modes
	if len(modes) == 0 {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	pv.Spec.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{PDName: name}
	return &volume.Spec{Name: name, PV: pv}
}

func unique(disk string) corev1.UniqueVolumeName { return corev1.UniqueVolumeName("test/disk/" + disk) }

func (w *fixture) pod(namespace, name string, node types.NodeName, specs ...*volume.Spec) *corev1.Pod {
	w.t.Helper()
	w.pods++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(fmt.Sprint("uid-", w.pods)),
	}}
	for _, spec := range specs {
		_, err := w.desired.AddPod(pod.UID, pod, spec, node)
		require.NoError(w.t, err)
	}
	return pod
}

func (w *fixture) deletePod(pod *corev1.Pod, node types.NodeName, disks ...string) {
	for _, d := range disks {
		w.desired.DeletePod(pod.UID, unique(d), node)
	}
}

// setMounted is what the node's kubelet says, in its status and as the controller sees it.
func (w *fixture) setMounted(node types.NodeName, disks ...string) {
	var names []corev1.UniqueVolumeName
	for _, d := range disks {
		names = append(names, unique(d))
	}
	w.statuses.withLock(func() { w.statuses.inUse[node] = names })
	w.actual.SetVolumesMountedByNode(names, node)
}

func (w *fixture) eventually(f func() bool, what string) {
	w.t.Helper()
	require.Eventually(w.t, f, testTimeout, pollInterval, what)
}

func (w *fixture) waitState(d string, node types.NodeName, state cache.AttachState) {
	w.t.Helper()
	w.eventually(func() bool {
		return w.actual.GetAttachState(unique(d), node) == state && !w.executor.IsOperationPending(unique(d), "")
	}, fmt.Sprintf("%s on %s must become %s", d, node, state))
}

func (w *fixture) nextEvent() string {
	w.t.Helper()
	select {
	case text := <-w.events.Events:
		return text
	case <-time.After(testTimeout):
		w.t.Fatal("no event came")
		return ""
	}
}

// waitIdle returns when everything that was asked of the reconciler so far has been done: a disk attached after it is.
func (w *fixture) waitIdle() {
	w.t.Helper()
	w.pods++
	probe := fmt.Sprint("probe-", w.pods)
	w.desired.AddNode("probe")
	w.pod("probe", probe, "probe", disk(probe))
	w.waitState(probe, "probe", cache.AttachStateAttached)
	<-w.events.Events
}
