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
	"github.com/berth-dev/berth/volume/testsuite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is how long the tests wait for what needs no clock.
const soon = time.Minute

// world is a node agent's volumes with real mounts, and an API server that is not real. The clock stands still unless
// the test moves it, so whatever happens without that happens because of an event.
type world struct {
	outgrown chan string // what the manager told of Pods that outgrew a limit
	full     chan string // the drivers that had no room on this node
	*volumemanager.Manager
	t        testing.TB
	root     string
	client   *fake.Clientset
	clock    *testclock.FakeClock
	objects  *objects.Manager
	tokens   *token.Manager
	timeline *timeline.Recorder
	events   *record.FakeRecorder
	drivers  *csi.Drivers
	driver   *csifake.Driver // the one driver of this node, if the test has one
	status   *nodeStatus
	claims   volumemanager.ClaimSource // of the next process; may be nil
	maySwap  func() (bool, error)      // of the next process
	times    *operationexecutor.Durations
	refusals atomic.Int32 // how many reads of claims are refused from now on
	noTokens atomic.Int32 // how many requests for tokens are
	watching chan string  // the resource of each watch that was opened
	stop     func()       // ends the process, as far as this world is one
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldAt(t, filepath.Join(testsuite.Root(t), "kubelet"))
}

func newWorldAt(t testing.TB, root string) *world {
	t.Helper()
	w := &world{
		t: t, root: root, client: fake.NewClientset(),
		clock: testclock.NewFakeClock(time.Now()), watching: make(chan string, 100), status: &nodeStatus{},
		maySwap: func() (bool, error) { return false, nil }, times: operationexecutor.NewDurations(),
	}
	w.client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if w.noTokens.Add(-1) >= 0 {
			return true, nil, apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "default",
				errors.New("no relationship found between node 'here' and this object"))
		}
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
		life := time.Duration(*request.Spec.ExpirationSeconds) * time.Second
		request.Status.ExpirationTimestamp = metav1.NewTime(w.clock.Now().Add(life))
		request.Status.Token = fmt.Sprint("token until ", request.Status.ExpirationTimestamp.Unix())
		return true, request, nil
	})
	w.client.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		if w.refusals.Add(-1) < 0 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "c",
			errors.New("no relationship found between node 'here' and this object"))
	})
	w.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		events, err := w.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		if resource := action.GetResource().Resource; resource != "csidrivers" {
			w.watching <- resource
		}
		return true, events, err
	})
	w.start()
	t.Cleanup(func() {
		require.NoError(t, w.UnmountAll(context.WithoutCancel(t.Context())))
		w.stop()
	})
	return w
}

// start starts the node agent's part of the world, also after stop.
func (w *world) start() {
	w.t.Helper()
	w.timeline = timeline.New(w.clock, 0)
	w.outgrown = make(chan string, 100)
	w.full = make(chan string, 100)
	w.events = record.NewFakeRecorder(100)
	w.objects = objects.New(objects.Deps{Client: w.client, Clock: w.clock})
	w.tokens = token.New(token.Deps{Client: w.client, Clock: w.clock})
	w.drivers = csi.NewDrivers()
	driverPlugin := csi.New(csi.Config{RootDir: w.root, NodeName: "here"},
		csi.Deps{Client: w.client, Drivers: w.drivers, Tokens: w.tokens, OnLimitExceeded: func(driver string) { w.full <- driver }})
	registry, err := plugins.New(plugins.Deps{Objects: w.objects, Tokens: w.tokens, CSI: driverPlugin})
	require.NoError(w.t, err)
	w.Manager = volumemanager.New(
		volumemanager.Config{RootDir: w.root, NodeName: "here"},
		volumemanager.Deps{
			Client: w.client, Plugins: registry, Objects: w.objects, Tokens: w.tokens,
			Node: w.status, Claims: w.claims, MaySwap: w.maySwap, Timeline: w.timeline, Recorder: w.events, Clock: w.clock,
			Outgrown: func(uid types.UID, message string) { w.outgrown <- string(uid) + ": " + message },
			Observe:  w.times.Observe,
		})
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	w.drivers.Subscribe(w.Manager.Retry)
	if w.driver != nil {
		w.register()
	}
	starts := []func(context.Context) error{w.objects.Start, w.tokens.Start, w.Manager.Start, driverPlugin.Start}
	done := make(chan error, len(starts))
	for _, start := range starts {
		go func() { done <- start(ctx) }()
	}
	w.stop = func() {
		cancel()
		for range starts {
			require.NoError(w.t, <-done)
		}
		w.drivers.Close()
	}
}

// claimSource tells of claims what the test says.
type claimSource struct {
	mu   sync.Mutex // guards all below
	last int
	told map[int]func(namespace, name string)
}

func (s *claimSource) Subscribe(changed func(namespace, name string)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told == nil {
		s.told = make(map[int]func(namespace, name string))
	}
	s.last++
	id := s.last
	s.told[id] = changed
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.told, id)
	}
}

func (s *claimSource) tell(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, changed := range s.told {
		changed(namespace, name)
	}
}

func (s *claimSource) subscribers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told)
}

// restart is kill -9 and a new process: nothing is unmounted, all that was in memory is gone.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// create puts objects into the API server.
func (w *world) create(list ...runtime.Object) {
	w.t.Helper()
	for _, object := range list {
		require.NoError(w.t, w.client.Tracker().Add(object))
	}
}

// awaitWatch returns when a watch of the resource was opened.
func (w *world) awaitWatch(resource string) {
	w.t.Helper()
	for {
		select {
		case got := <-w.watching:
			if got == resource {
				return
			}
		case <-time.After(soon):
			w.t.Fatalf("no watch of %s", resource)
		}
	}
}

// nextEvent is the next event about a Pod.
func (w *world) nextEvent() string {
	w.t.Helper()
	select {
	case event := <-w.events.Events:
		return event
	case <-time.After(soon):
		w.t.Fatal("no event")
		return ""
	}
}

// mounting calls Mount in the background; the channel gets its result.
func (w *world) mounting(pod *corev1.Pod) <-chan error {
	result := make(chan error, 1)
	go func() { result <- w.Mount(w.t.Context(), pod) }()
	return result
}

// result is what a call in the background returned.
func (w *world) result(of <-chan error) error {
	w.t.Helper()
	select {
	case err := <-of:
		return err
	case <-time.After(soon):
		w.t.Fatal("no result")
		return nil
	}
}

// await waits for a condition that needs no clock.
func (w *world) await(what string, condition func() bool) {
	w.t.Helper()
	require.Eventually(w.t, condition, soon, time.Millisecond, what)
}

// step moves the clock once somebody waits for it. Where others wait for it, too, use stepUntil.
func (w *world) step(d time.Duration) {
	w.t.Helper()
	w.await("somebody waits for the clock", w.clock.HasWaiters)
	w.clock.Step(d)
}

// stepUntil moves the clock on, bit by bit, until the condition holds, for waits that begin at an unknown moment.
func (w *world) stepUntil(bit time.Duration, what string, condition func() bool) {
	w.t.Helper()
	w.await(what, func() bool {
		if condition() {
			return true
		}
		w.clock.Step(bit)
		return false
	})
}

// forgotten moves the clock until no object is followed any more, as must be soon after the last Pod.
func (w *world) forgotten() {
	w.t.Helper()
	w.stepUntil(time.Minute, "the objects to be forgotten", func() bool { return w.objects.Watched() == 0 })
}

// read is the content of a file in a volume, or its error.
func (w *world) read(uid types.UID, name, file string) string {
	data, err := os.ReadFile(filepath.Join(w.Volumes(uid)[name].Path, file))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func (w *world) gone(uid types.UID) {
	w.t.Helper()
	require.NoDirExists(w.t, volume.PodVolumesDir(w.root, uid))
	require.NoDirExists(w.t, filepath.Join(volume.PodDir(w.root, uid), "volume-subpaths"))
	require.Empty(w.t, w.Volumes(uid))
}

// pod is a Pod whose only container mounts all of these volumes.
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

// claim is a claim and the local volume, in a new directory, that it is bound to, and this node.
func (w *world) claim(name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, string) {
	w.t.Helper()
	dir := filepath.Join(filepath.Dir(w.root), "data-"+name)
	require.NoError(w.t, os.MkdirAll(dir, 0o755))
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

func hereNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{corev1.LabelHostname: "here"}}}
}
