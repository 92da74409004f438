package operationexecutor_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// fakePlugin is a plugin whose calls do what the test says.
type fakePlugin struct {
	attach func() error
	detach func(name string) error
	verify func() (operationexecutor.Verdict, error)
}

func (d *fakePlugin) Name() string                                 { return "test/disk" }
func (d *fakePlugin) CanAttach(spec *volume.Spec) (bool, error)    { return spec.PV != nil, nil }
func (d *fakePlugin) VolumeName(spec *volume.Spec) (string, error) { return spec.PV.Name, nil }
func (d *fakePlugin) Detach(_ context.Context, name string, _ types.NodeName) error {
	return d.detach(name)
}

func (d *fakePlugin) Attach(context.Context, *volume.Spec, types.NodeName) (string, error) {
	return "/dev/d", d.attach()
}

func (d *fakePlugin) Verify(_ context.Context, volumes []operationexecutor.AttachedVolume, _ types.NodeName,
) (map[corev1.UniqueVolumeName]operationexecutor.Verdict, error) {
	verdict, err := d.verify()
	all := make(map[corev1.UniqueVolumeName]operationexecutor.Verdict)
	for _, v := range volumes {
		all[v.VolumeName] = verdict
	}
	return all, err
}

// recordingState is an actual state of the world that records its updates.
type recordingState struct {
	mu      sync.Mutex
	updates []string
}

func (n *recordingState) add(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.updates = append(n.updates, what)
}

func (n *recordingState) MarkVolumeAsAttached(name corev1.UniqueVolumeName, _ *volume.Spec, node types.NodeName, path string) error {
	n.add("attached " + string(name) + " " + string(node) + " " + path)
	return nil
}

func (n *recordingState) MarkVolumeAsUncertain(name corev1.UniqueVolumeName, _ *volume.Spec, node types.NodeName) error {
	n.add("uncertain " + string(name) + " " + string(node))
	return nil
}

func (n *recordingState) MarkVolumeAsDetached(name corev1.UniqueVolumeName, node types.NodeName) {
	n.add("detached " + string(name) + " " + string(node))
}

func (n *recordingState) RemoveVolumeFromReportAsAttached(corev1.UniqueVolumeName, types.NodeName) error {
	return nil
}
func (n *recordingState) AddVolumeToReportAsAttached(corev1.UniqueVolumeName, types.NodeName) {}

func (n *recordingState) ApplyVerdict(name corev1.UniqueVolumeName, _ types.NodeName, _ uint64, v operationexecutor.Verdict) bool {
	n.add("verdict " + string(name) + " " + v.String())
	return true
}

func pv(modes ...corev1.PersistentVolumeAccessMode) *volume.Spec {
	spec := &volume.Spec{Name: "data", PV: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "d"}}}
	spec.PV.Spec.AccessModes = modes
	return spec
}

func want() operationexecutor.VolumeToAttach {
	return operationexecutor.VolumeToAttach{
		VolumeName: "test/disk/d", VolumeSpec: pv(corev1.ReadWriteOnce), NodeName: "a",
		ScheduledPods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}},
	}
}

// R-34, B-14.
func TestIsMultiAttachAllowed(t *testing.T) {
	const rwo, rwop, rwx, rox = corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadWriteMany, corev1.ReadOnlyMany
	inline := func(source corev1.VolumeSource) *volume.Spec {
		return &volume.Spec{Volume: &corev1.Volume{VolumeSource: source}}
	}
	for _, test := range []struct {
		name string
		spec *volume.Spec
		want bool
	}{
		{"no modes", pv(), true},
		{"rwo", pv(rwo), false},
		{"rwop", pv(rwop), false},
		{"rwo and rwop", pv(rwo, rwop), false},
		{"rwx", pv(rwx), true},
		{"rox", pv(rox), true},
		{"rwo and rox", pv(rwo, rox), true},
		{"inline", inline(corev1.VolumeSource{}), true},
		{"inline azure", inline(corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{}}), false},
		{"inline cinder", inline(corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{}}), false},
		{"known by name only", nil, false},
	} {
		require.Equal(t, test.want, operationexecutor.IsMultiAttachAllowed(test.spec), test.name)
	}
}

// R-28, B-22.
func TestSplitUniqueVolumeName(t *testing.T) {
	plugin, name, err := operationexecutor.SplitUniqueVolumeName("kubernetes.io/csi/drv^a/b^c")
	require.NoError(t, err)
	require.Equal(t, [2]string{"kubernetes.io/csi", "drv^a/b^c"}, [2]string{plugin, name})
	_, _, err = operationexecutor.SplitUniqueVolumeName("kubernetes.io/csi")
	require.Error(t, err)
}

//
func TestAttach(t *testing.T) {
	dangling := &operationexecutor.DanglingAttachError{Node: "b", Err: errors.New("busy")}
	const failed = `Warning FailedAttachVolume AttachVolume.Attach failed for volume "d" : `
	for _, test := range []struct {
		name    string
		attach  func() error
		change  func(*operationexecutor.VolumeToAttach)
		updates []string
		event   string
	}{
		{name: "success", attach: func() error { return nil }, updates: []string{"attached test/disk/d a /dev/d"},
			event: `Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "d" `},
		{name: "failure", attach: func() error { return errors.New("no 100% luck %s") },
			updates: []string{"uncertain test/disk/d a"}, event: failed + "no 100% luck %s"},
		{name: "dangling", attach: func() error { return dangling }, event: failed + dangling.Error(),
			updates: []string{"uncertain test/disk/d b", "uncertain test/disk/d a"}},
		{name: "panic", attach: func() error { panic("boom") }, updates: []string{"uncertain test/disk/d a"},
			event: failed + `plugin "test/disk" panicked: boom`},
		{name: "no plugin", change: func(w *operationexecutor.VolumeToAttach) { w.VolumeSpec = &volume.Spec{Name: "d"} },
			event: failed + `find plugin of volume "d": volume is not attachable`},
	} {
		t.Run(test.name, func(t *testing.T) {
			events, state := record.NewFakeRecorder(10), &recordingState{}
			clock := testclock.NewFakeClock(time.Now())
			e, err := operationexecutor.NewOperationExecutor(operationexecutor.Deps{
				Plugins: operationexecutor.Plugins{&fakePlugin{attach: test.attach}}, Recorder: events, Clock: clock,
			}, operationexecutor.Config{})
			require.NoError(t, err)
			var ended []corev1.UniqueVolumeName
			e.OnCompletion(func(name corev1.UniqueVolumeName, node types.NodeName) {
				require.False(t, e.IsOperationPending(name, node), "the volume must not be pending when its end is reported")
				ended = append(ended, name)
			})
			w := want()
			if test.change != nil {
				test.change(&w)
			}
			require.NoError(t, e.AttachVolume(t.Context(), w, state))
			e.Wait()
			require.Equal(t, test.updates, state.updates)
			require.Equal(t, test.event, <-events.Events)
			require.Equal(t, []corev1.UniqueVolumeName{"test/disk/d"}, ended)
			node := operationexecutor.OperationNode(w.VolumeSpec, "a")
			ok := test.name == "success"
			require.Equal(t, ok, e.IsOperationSafeToRetry("test/disk/d", node, operationexecutor.OperationAttach))
			require.True(t, e.IsOperationSafeToRetry("test/disk/d", node, operationexecutor.OperationDetach))
			if !ok {
				require.Equal(t, 500*time.Millisecond, e.RetryAfter("test/disk/d", node, operationexecutor.OperationAttach))
				var backoff *operationexecutor.BackoffError
				require.ErrorAs(t, e.AttachVolume(t.Context(), w, state), &backoff)
				e.ForgetFailures("test/disk/d", node)
				require.Zero(t, e.RetryAfter("test/disk/d", node, operationexecutor.OperationAttach))
			}
		})
	}
}

//
func TestDetach(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "a")
	inUse := &corev1.Node{Status: corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{"test/disk/d"}}}
	for _, test := range []struct {
		name    string
		node    *corev1.Node
		nodeErr error
		verify  bool
		detach  error
		called  bool
		updates string
	}{
		{name: "success", node: &corev1.Node{}, verify: true, called: true, updates: "detached test/disk/d a"},
		{name: "in use", node: inUse, verify: true, updates: "uncertain test/disk/d a"},
		{name: "in use but forced", node: inUse, called: true, updates: "detached test/disk/d a"},
		{name: "node gone", nodeErr: notFound, verify: true, called: true, updates: "detached test/disk/d a"},
		{name: "node unreadable", nodeErr: errors.New("away"), verify: true, updates: "uncertain test/disk/d a"},
		{name: "failure", detach: errors.New("stuck"), called: true, updates: "uncertain test/disk/d a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			state, called := &recordingState{}, false
			e, err := operationexecutor.NewOperationExecutor(operationexecutor.Deps{
				Plugins: operationexecutor.Plugins{&fakePlugin{detach: func(name string) error {
					called = true
					require.Equal(t, "d", name)
					return test.detach
				}}},
				Nodes: func(context.Context, types.NodeName) (*corev1.Node, error) { return test.node, test.nodeErr },
			}, operationexecutor.Config{})
			require.NoError(t, err)
			from := operationexecutor.AttachedVolume{VolumeName: "test/disk/d", NodeName: "a"}
			require.NoError(t, e.DetachVolume(t.Context(), from, test.verify, state))
			e.Wait()
			require.Equal(t, test.called, called)
			require.Equal(t, []string{test.updates}, state.updates)
		})
	}
	e, err := operationexecutor.NewOperationExecutor(operationexecutor.Deps{Plugins: operationexecutor.Plugins{}},
		operationexecutor.Config{})
	require.NoError(t, err)
	require.ErrorContains(t, e.DetachVolume(t.Context(), operationexecutor.AttachedVolume{VolumeName: "x"}, true, &recordingState{}), "three parts")
	require.ErrorIs(t, e.DetachVolume(t.Context(), operationexecutor.AttachedVolume{VolumeName: "a/b/c"}, true, &recordingState{}),
		operationexecutor.ErrNotAttachable)
}

// Attaches that hang do not keep detaches from running.
func TestAttachesAndDetachesHaveTheirOwnConcurrency(t *testing.T) {
	gate, state := make(chan struct{}), &recordingState{}
	e, err := operationexecutor.NewOperationExecutor(operationexecutor.Deps{
		Plugins: operationexecutor.Plugins{&fakePlugin{
			attach: func() error { <-gate; return nil }, detach: func(string) error { return nil },
		}},
	}, operationexecutor.Config{AttachConcurrency: 1, DetachConcurrency: 1})
	require.NoError(t, err)
	detached := make(chan struct{})
	e.OnCompletion(func(name corev1.UniqueVolumeName, _ types.NodeName) {
		if name == "test/disk/z" {
			close(detached)
		}
	})
	for _, name := range []corev1.UniqueVolumeName{"test/disk/d", "test/disk/e"} {
		w := want()
		w.VolumeName = name
		require.NoError(t, e.AttachVolume(t.Context(), w, state))
	}
	require.NoError(t, e.DetachVolume(t.Context(),
		operationexecutor.AttachedVolume{VolumeName: "test/disk/z", NodeName: "a"}, false, state))
	<-detached
	close(gate)
	e.Wait()
	require.Len(t, state.updates, 3)
}

// B-12: without a result, nothing is known about the volumes.
func TestVerify(t *testing.T) {
	state, plugin := &recordingState{}, &fakePlugin{}
	e, err := operationexecutor.NewOperationExecutor(operationexecutor.Deps{Plugins: operationexecutor.Plugins{plugin}},
		operationexecutor.Config{})
	require.NoError(t, err)
	volumes := []operationexecutor.AttachedVolume{{VolumeName: "test/disk/d", NodeName: "a", Generation: 3}}
	all := map[types.NodeName][]operationexecutor.AttachedVolume{"a": volumes}
	plugin.verify = func() (operationexecutor.Verdict, error) {
		return operationexecutor.VerdictDetached, errors.New("away")
	}
	require.ErrorContains(t, e.VerifyVolumesAreAttachedPerNode(t.Context(), volumes, "a", state), "away")
	plugin.verify = func() (operationexecutor.Verdict, error) { return operationexecutor.VerdictAttached, nil }
	e.VerifyVolumesAreAttached(t.Context(), all, state)
	e.Wait()
	require.Empty(t, state.updates)
	plugin.verify = func() (operationexecutor.Verdict, error) { return operationexecutor.VerdictDetached, nil }
	e.VerifyVolumesAreAttached(t.Context(), all, state)
	e.Wait()
	require.Equal(t, []string{"verdict test/disk/d detached"}, state.updates)
}
