package resize_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/provision/claimwork"
	"github.com/berth-dev/berth/provision/resize"
	"github.com/berth-dev/berth/timeline"
)

const driverName = "disk.example.com"

var (
	claimsGVR  = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	volumesGVR = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
)

// fakeAPI is an API server in memory, with the versions and the preconditions that client-go's fake lacks, and with a
// watch that lags behind. It outlives the resizers that run on it.
type fakeAPI struct {
	t       testing.TB
	mu      sync.Mutex // guards all below
	tracker k8stesting.ObjectTracker
	react   k8stesting.ReactionFunc
	version map[schema.GroupVersionResource]int64
	lag     func() time.Duration
	patches int
	forbid  bool // whether claims may be patched in their status alone

	driver *fakeDriver
}

func newFakeAPI(t testing.TB) *fakeAPI {
	tracker := k8stesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	api := &fakeAPI{t: t, tracker: tracker, version: map[schema.GroupVersionResource]int64{},
		lag: func() time.Duration { return 0 }, driver: newFakeDriver()}
	api.react = k8stesting.ObjectReaction(&versionedTracker{tracker, api})
	return api
}

// versionedTracker gives every written object the resourceVersion by which the tracker counts it. Its caller holds the world's mu.
type versionedTracker struct {
	k8stesting.ObjectTracker
	api *fakeAPI
}

func (s *versionedTracker) write(gvr schema.GroupVersionResource, obj runtime.Object, store func(runtime.Object) error) error {
	obj = obj.DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	next := max(s.api.version[gvr], 1) + 1
	m.SetResourceVersion(strconv.FormatInt(next, 10))
	if err := store(obj); err != nil {
		return err
	}
	s.api.version[gvr] = next
	return nil
}

func (s *versionedTracker) Create(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.CreateOptions) error {
	return s.write(gvr, obj, func(obj runtime.Object) error { return s.ObjectTracker.Create(gvr, obj, ns, opts...) })
}

func (s *versionedTracker) Update(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.UpdateOptions) error {
	return s.write(gvr, obj, func(obj runtime.Object) error { return s.ObjectTracker.Update(gvr, obj, ns, opts...) })
}

func (s *versionedTracker) Patch(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.PatchOptions) error {
	return s.write(gvr, obj, func(obj runtime.Object) error { return s.ObjectTracker.Patch(gvr, obj, ns, opts...) })
}

// process is one life of a resizer. What it asks of the world when it is dead does not come through.
type process struct {
	mu        sync.Mutex
	dead      bool
	kill      context.CancelFunc
	nextFault func() fault // asked before each request, if set
	// onResponse hears of each answer of the driver that arrived, or that is taken for one.
	onResponse func(name string, err error)
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

type fault int

const (
	noFault fault = iota
	failBefore
	failAfter // the request is carried out and the answer lost
	killBefore
	killAfter
)

var errDead = errors.New("connection refused")

func (p *process) enter() (after func() error, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, errDead
	}
	v := noFault
	if p.nextFault != nil {
		v = p.nextFault()
	}
	die := func() error {
		p.dead = true
		p.kill()
		return errDead
	}
	switch v {
	case failBefore:
		return nil, apierrors.NewTooManyRequests("injected", 0)
	case killBefore:
		return nil, die()
	}
	return func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case v == failAfter:
			return apierrors.NewTimeoutError("injected", 0)
		case v == killAfter:
			return die()
		}
		return nil
	}, nil
}

func (api *fakeAPI) client(p *process) *fake.Clientset {
	cs := &fake.Clientset{}
	cs.AddReactor("*", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if p == nil {
			return api.handle(action)
		}
		after, err := p.enter()
		if err != nil {
			return true, nil, err
		}
		handled, obj, err := api.handle(action)
		if lost := after(); lost != nil {
			return true, nil, lost
		}
		return handled, obj, err
	})
	cs.AddWatchReactor("*", func(action k8stesting.Action) (bool, watch.Interface, error) {
		var opts metav1.ListOptions
		if a, ok := action.(k8stesting.WatchActionImpl); ok {
			opts = a.ListOptions
		}
		source, err := api.tracker.Watch(action.GetResource(), action.GetNamespace(), opts)
		if err != nil {
			return true, nil, err
		}
		return true, api.delayed(source), nil
	})
	return cs
}

// delayed delivers the events of source after the fixture's lag.
func (api *fakeAPI) delayed(source watch.Interface) watch.Interface {
	events := make(chan watch.Event)
	proxy := watch.NewProxyWatcher(events)
	go func() {
		defer source.Stop()
		defer close(events)
		for {
			select {
			case <-proxy.StopChan():
				return
			case event, open := <-source.ResultChan():
				if !open {
					return
				}
				event.Object = event.Object.DeepCopyObject() // the tracker's first ones are its own
				time.Sleep(api.lag())                        // the bubble's time
				select {
				case events <- event:
				case <-proxy.StopChan():
					return
				}
			}
		}
	}()
	return proxy
}

func (api *fakeAPI) handle(action k8stesting.Action) (bool, runtime.Object, error) {
	api.mu.Lock()
	defer api.mu.Unlock()
	a, ok := action.(k8stesting.PatchActionImpl)
	if !ok {
		return api.react(action)
	}
	api.patches++
	if api.forbid && a.GetResource() == claimsGVR && a.GetSubresource() == "" {
		return true, nil, apierrors.NewForbidden(claimsGVR.GroupResource(), a.Name, errors.New("no rule allows it"))
	}
	found, err := api.tracker.Get(a.GetResource(), a.GetNamespace(), a.Name)
	if err != nil {
		return true, nil, err
	}
	now, err := meta.Accessor(found)
	if err != nil {
		return true, nil, err
	}
	var sent struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(a.Patch, &sent); err != nil {
		return true, nil, apierrors.NewBadRequest(err.Error())
	}
	if uid, version := sent.Metadata.UID, sent.Metadata.ResourceVersion; uid != "" && uid != now.GetUID() ||
		version != "" && version != now.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), a.Name, errors.New("precondition"))
	}
	if handled, obj, err := api.react(action); err != nil {
		return handled, obj, err
	}
	found, err = api.tracker.Get(a.GetResource(), a.GetNamespace(), a.Name) // as it was stamped
	return true, found, err
}

// start runs a resizer as a process of its own; stop ends it in order.
func (api *fakeAPI) start(p *process, deps resize.Deps) (stop func()) {
	ctx, cancel := context.WithCancel(api.t.Context())
	p.kill = cancel
	deps.Client, deps.Driver = api.client(p), &driverConn{api.driver, p}
	if deps.Logger == nil {
		deps.Logger = testlog.New(api.t, slog.DiscardHandler)
	}
	if deps.Recorder == nil {
		deps.Recorder = record.NewFakeRecorder(10_000)
	}
	r, err := resize.New(deps, resize.Config{DriverName: driverName})
	require.NoError(api.t, err)
	done := make(chan error, 1)
	go func() { done <- r.Start(ctx) }()
	synctest.Wait()
	require.ErrorContains(api.t, r.Start(ctx), "was started before")
	return func() {
		cancel()
		require.NoError(api.t, <-done)
	}
}

func gib(n int) resource.Quantity { return resource.MustParse(fmt.Sprintf("%dGi", n)) }

// addClaim makes a claim of 1Gi that is bound to its volume.
func (api *fakeAPI) addClaim(name string, change ...func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)) {
	one := corev1.ResourceList{corev1.ResourceStorage: gib(1)}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name,
			Resources: corev1.VolumeResourceRequirements{Requests: one.DeepCopy()}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: one.DeepCopy()},
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name, UID: types.UID("uid-pv-" + name)},
		Spec: corev1.PersistentVolumeSpec{Capacity: one.DeepCopy(),
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name}}},
	}
	for _, c := range change {
		c(claim, pv)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	s := &versionedTracker{api.tracker, api}
	require.NoError(api.t, s.Create(claimsGVR, claim, "ns"))
	require.NoError(api.t, s.Create(volumesGVR, pv, ""))
	api.driver.sizes[name] = 1 << 30
}

func (api *fakeAPI) claim(name string) *corev1.PersistentVolumeClaim {
	obj, err := api.tracker.Get(claimsGVR, "ns", name)
	require.NoError(api.t, err)
	return obj.DeepCopyObject().(*corev1.PersistentVolumeClaim)
}

func (api *fakeAPI) volume(name string) *corev1.PersistentVolume {
	obj, err := api.tracker.Get(volumesGVR, "", "pv-"+name)
	require.NoError(api.t, err)
	return obj.DeepCopyObject().(*corev1.PersistentVolume)
}

// updateClaim changes a claim as another client would.
func (api *fakeAPI) updateClaim(name string, change func(*corev1.PersistentVolumeClaim)) {
	api.mu.Lock()
	defer api.mu.Unlock()
	claim := api.claim(name)
	change(claim)
	require.NoError(api.t, (&versionedTracker{api.tracker, api}).Update(claimsGVR, claim, "ns"))
}

func (api *fakeAPI) request(name string, size resource.Quantity) {
	api.updateClaim(name, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = size
	})
}

// expandOnNode does the node expansion of a kubelet that has a Pod with the claim, if it is pending.
func (api *fakeAPI) expandOnNode(name string) {
	if api.claim(name).Status.AllocatedResourceStatuses["storage"] != corev1.PersistentVolumeClaimNodeResizePending {
		return
	}
	api.updateClaim(name, func(claim *corev1.PersistentVolumeClaim) {
		claim.Status.Capacity = api.volume(name).Spec.Capacity.DeepCopy()
		claim.Status.AllocatedResourceStatuses, claim.Status.Conditions = nil, nil
	})
}

func conditions(claim *corev1.PersistentVolumeClaim) map[corev1.PersistentVolumeClaimConditionType]string {
	found := map[corev1.PersistentVolumeClaimConditionType]string{}
	for _, c := range claim.Status.Conditions {
		found[c.Type] = c.Message
	}
	return found
}

// run runs a test in a bubble, with a resizer.
func run(t *testing.T, test func(api *fakeAPI, events <-chan string, stages *timeline.Recorder)) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(t)
		api.addClaim("c")
		recorder, stages := record.NewFakeRecorder(1000), timeline.New(clockNow{}, 100)
		stop := api.start(&process{}, resize.Deps{Deps: claimwork.Deps{Recorder: recorder, Timeline: stages}})
		test(api, recorder.Events, stages)
		stop()
	})
}

// clockNow is the bubble's clock.
type clockNow struct{}

func (clockNow) Now() time.Time                  { return time.Now() }
func (clockNow) Since(t time.Time) time.Duration { return time.Since(t) }
