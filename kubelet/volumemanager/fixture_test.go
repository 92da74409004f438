package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/objects"
	"github.com/berth-dev/berth/kubelet/token"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/csi"
	csifake "github.com/berth-dev/berth/volume/csi/fake"
	"github.com/berth-dev/berth/volume/operationexecutor"
	"github.com/berth-dev/berth/volume/plugins"
	"github.com/berth-dev/berth/volume/selinux"
	"github.com/berth-dev/berth/volume/testsuite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waitTimeout is how long the tests wait for what needs no clock.
const waitTimeout = time.Minute

// fixture is a volume manager with real mounts and a fake API server. The clock stands still unless the test moves it, so
// whatever happens without that happens because of an event.
type fixture struct {
	overAttachLimit chan string // calls of OnLimitExceeded, by driver
	*volumemanager.Manager
	t             testing.TB
	root          string
	client        *fake.Clientset
	clock         *testclock.FakeClock
	objects       *objects.Manager
	tokens        *token.Manager
	timeline      *timeline.Recorder
	events        *record.FakeRecorder
	drivers       *csi.Drivers
	driver        *csifake.Driver // the driver of this node, if the test has one
	status        *nodeStatus
	acquiring     func()                    // if not nil, called before the objects of a Pod are acquired
	claims        volumemanager.ClaimSource // of the next process; may be nil
	maySwap       func() (bool, error)      // of the next process
	seLinux       selinux.Labels            // of the next process
	seLinuxMount  bool                      // of the next process
	others        []volume.Plugin           // more plugins of the next process
	durations     *operationexecutor.Durations
	claimRefusals atomic.Int32 // how many reads of claims are refused from now on
	tokenRefusals atomic.Int32 // how many requests for tokens are
	failures      atomic.Int32 // calls of OnFailure
	openedWatches chan string  // the resource of each watch that was opened
	stop          func()       // stops the process
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return newFixtureAt(t, filepath.Join(testsuite.Root(t), "kubelet"))
}

func newFixtureAt(t testing.TB, root string) *fixture {
	t.Helper()
	f := &fixture{
		t: t, root: root, client: fake.NewClientset(),
		clock: testclock.NewFakeClock(time.Now()), openedWatches: make(chan string, 100), status: &nodeStatus{},
		maySwap: func() (bool, error) { return false, nil }, durations: operationexecutor.NewDurations(),
	}
	f.client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if f.tokenRefusals.Add(-1) >= 0 {
			return true, nil, apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "default",
				errors.New("no relationship found between node 'here' and this object"))
		}
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
		life := time.Duration(*request.Spec.ExpirationSeconds) * time.Second
		request.Status.ExpirationTimestamp = metav1.NewTime(f.clock.Now().Add(life))
		request.Status.Token = fmt.Sprint("token until ", request.Status.ExpirationTimestamp.Unix())
		return true, request, nil
	})
	f.client.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		if f.claimRefusals.Add(-1) < 0 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "c",
			errors.New("no relationship found between node 'here' and this object"))
	})
	f.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		var options []metav1.ListOptions // without any, the watch begins with the next change
		if watched, ok := action.(clienttesting.WatchActionImpl); ok && watched.ListOptions.ResourceVersion != "" {
			options = append(options, watched.ListOptions) // after a list
		}
		events, err := f.client.Tracker().Watch(action.GetResource(), action.GetNamespace(), options...)
		if resource := action.GetResource().Resource; resource != "csidrivers" {
			f.openedWatches <- resource
		}
		return true, events, err
	})
	f.start()
	t.Cleanup(func() {
		require.NoError(t, f.UnmountAll(context.WithoutCancel(t.Context())))
		f.stop()
	})
	return f
}

// start starts a new process, as far as the fixture has one.
func (f *fixture) start() {
	f.t.Helper()
	f.timeline = timeline.New(f.clock, 0)
	f.overAttachLimit = make(chan string, 100)
	f.events = record.NewFakeRecorder(100)
	var err error
	f.objects, err = objects.New(objects.Deps{Client: f.client, Clock: f.clock})
	require.NoError(f.t, err)
	f.tokens, err = token.New(token.Deps{Client: f.client, Clock: f.clock})
	require.NoError(f.t, err)
	f.drivers = csi.NewDrivers()
	driverPlugin, err := csi.New(csi.Deps{
		Client: f.client, Drivers: f.drivers, Tokens: f.tokens,
		OnLimitExceeded: func(driver string) { f.overAttachLimit <- driver },
	}, csi.Config{RootDir: f.root, NodeName: "here"})
	require.NoError(f.t, err)
	registry, err := plugins.New(plugins.Deps{Objects: f.objects, Tokens: f.tokens, CSI: driverPlugin, ProjectQuotas: true, Others: f.others})
	require.NoError(f.t, err)
	f.Manager, err = volumemanager.New(
		volumemanager.Deps{
			Client: f.client, Plugins: registry, Objects: hookedObjects{f.objects, f}, Tokens: f.tokens,
			Node: f.status, Claims: f.claims, MaySwap: f.maySwap, Timeline: f.timeline, Recorder: f.events, Clock: f.clock,
			Observe: f.durations.Observe, OnFailure: func(types.UID) { f.failures.Add(1) }, SELinux: f.seLinux,
		}, volumemanager.Config{RootDir: f.root, NodeName: "here", SELinuxMount: f.seLinuxMount})
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	f.drivers.Subscribe(f.Manager.Retry)
	if f.driver != nil {
		f.register()
	}
	starts := []func(context.Context) error{f.objects.Start, f.tokens.Start, f.Manager.Start, driverPlugin.Start}
	done := make(chan error, len(starts))
	for _, start := range starts {
		go func() { done <- start(ctx) }()
	}
	f.stop = func() {
		cancel()
		for range starts {
			require.NoError(f.t, <-done)
		}
		f.drivers.Close()
	}
}

// claimSource is a ClaimSource that the test notifies.
type claimSource struct {
	mu         sync.Mutex // guards all below
	last       int
	subscribed map[int]func(namespace, name string)
}

func (s *claimSource) Subscribe(changed func(namespace, name string)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscribed == nil {
		s.subscribed = make(map[int]func(namespace, name string))
	}
	s.last++
	id := s.last
	s.subscribed[id] = changed
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subscribed, id)
	}
}

func (s *claimSource) notify(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, changed := range s.subscribed {
		changed(namespace, name)
	}
}

func (s *claimSource) subscribers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.subscribed)
}

// restart is kill -9 and a new process: nothing is unmounted, the state in memory is lost.
func (f *fixture) restart() {
	f.t.Helper()
	f.stop()
	f.start()
}

// create puts objects into the API server.
func (f *fixture) create(list ...runtime.Object) {
	f.t.Helper()
	for _, object := range list {
		require.NoError(f.t, f.client.Tracker().Add(object))
	}
}

// waitForWatch returns when a watch of the resource was opened.
func (f *fixture) waitForWatch(resource string) {
	f.t.Helper()
	for {
		select {
		case got := <-f.openedWatches:
			if got == resource {
				return
			}
		case <-time.After(waitTimeout):
			f.t.Fatalf("no watch of %s", resource)
		}
	}
}

// nextEvent waits for the next event about a Pod.
func (f *fixture) nextEvent() string {
	f.t.Helper()
	select {
	case event := <-f.events.Events:
		return event
	case <-time.After(waitTimeout):
		f.t.Fatal("no event")
		return ""
	}
}

// startMount calls Mount in the background; the channel gets its result.
func (f *fixture) startMount(pod *corev1.Pod) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f.Mount(f.t.Context(), pod) }()
	return result
}

// result waits for the result of a call in the background.
func (f *fixture) result(of <-chan error) error {
	f.t.Helper()
	select {
	case err := <-of:
		return err
	case <-time.After(waitTimeout):
		f.t.Fatal("no result")
		return nil
	}
}

// eventually waits for a condition that needs no clock.
func (f *fixture) eventually(what string, condition func() bool) {
	f.t.Helper()
	require.Eventually(f.t, condition, waitTimeout, time.Millisecond, what)
}

// step moves the clock once a timer is set. If several timers may be set, use stepUntil.
func (f *fixture) step(d time.Duration) {
	f.t.Helper()
	f.eventually("a timer is set", f.clock.HasWaiters)
	f.clock.Step(d)
}

// stepUntil moves the clock on, bit by bit, until the condition holds, for waits that begin at an unknown moment.
func (f *fixture) stepUntil(bit time.Duration, what string, condition func() bool) {
	f.t.Helper()
	f.eventually(what, func() bool {
		if condition() {
			return true
		}
		f.clock.Step(bit)
		return false
	})
}

// waitObjectsReleased moves the clock until no object is watched any more.
func (f *fixture) waitObjectsReleased() {
	f.t.Helper()
	f.stepUntil(time.Minute, "no object is watched", func() bool { return f.objects.Watched() == 0 })
}

// readFile returns the content of a file in a volume, or its error.
func (f *fixture) readFile(uid types.UID, name, file string) string {
	data, err := os.ReadFile(filepath.Join(f.Volumes(uid)[name].Path, file))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func (f *fixture) requireUnmounted(uid types.UID) {
	f.t.Helper()
	require.NoDirExists(f.t, volume.PodVolumesDir(f.root, uid))
	require.NoDirExists(f.t, filepath.Join(volume.PodDir(f.root, uid), "volume-subpaths"))
	require.Empty(f.t, f.Volumes(uid))
}

// pod returns a Pod whose only container mounts all of these volumes.
func pod(uid types.UID, volumes ...corev1.Volume) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-" + string(uid), Namespace: "ns", UID: uid}}
	container := corev1.Container{Name: "main"}
	for _, v := range volumes {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	p.Spec = corev1.PodSpec{Volumes: volumes, Containers: []corev1.Container{container}}
	return p
}

func vol(name string, source corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: source}
}

func emptyDir(name string) corev1.Volume {
	return vol(name, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
}

func memory(name string) corev1.Volume {
	return vol(name, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}})
}

func configMapVolume(name, object string) corev1.Volume {
	return vol(name, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: object}}})
}

func secretVolume(name, object string) corev1.Volume {
	return vol(name, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: object}})
}

func claimVolume(name, claim string) corev1.Volume {
	return vol(name, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}})
}

func tokenVolume(name string) corev1.Volume {
	seconds := int64(600)
	return vol(name, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
	}}})
}

func labelsVolume(name string) corev1.Volume {
	return vol(name, corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
		{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
	}}})
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string]string{"k": value}}
}

func secret(name, value string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{"k": []byte(value)}}
}

// newLocalClaim returns a claim, the local volume that it is bound to, and the volume's new directory.
func (f *fixture) newLocalClaim(name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, string) {
	f.t.Helper()
	dir := filepath.Join(filepath.Dir(f.root), "data-"+name)
	require.NoError(f.t, os.MkdirAll(dir, 0o755))
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name, UID: claim.UID}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: dir}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"here"},
		}}}},
	}}
	return claim, pv, dir
}

func newNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{corev1.LabelHostname: "here"}}}
}
