package controller_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
)

// recordingReconciler records its requests.
type recordingReconciler struct {
	mu   sync.Mutex
	seen []string
}

func (j *recordingReconciler) Reconcile(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen = append(j.seen, r.String())
	return reconcile.Result{}, nil
}

func (j *recordingReconciler) take() []string {
	synctest.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	seen := j.seen
	j.seen = nil
	return seen
}

func pod(name, owner string) *corev1.Pod {
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: "uid", Controller: &yes,
		}}
	}
	return p
}

// startWithSource starts a controller with one source over an informer of what upstream holds.
func startWithSource(
	t *testing.T, upstream *fcache.FakeControllerSource, example runtime.Object,
	source func(cache.SharedIndexInformer) controller.Source[reconcile.Request],
) *recordingReconciler {
	t.Helper()
	informer := cache.NewSharedIndexInformer(upstream, example, 0, cache.Indexers{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	j := &recordingReconciler{}
	c, err := controller.New(j, controller.Deps{}, controller.Config{Name: "test"})
	require.NoError(t, err)
	c.Watch(source(informer))
	t.Cleanup(func() {
		cancel()
		<-ended
		upstream.Shutdown()
	})
	start(t, c)
	require.NoError(t, c.Ready())
	return j
}

func TestForAllKindsOfObjects(t *testing.T) {
	for name, obj := range map[string]interface {
		runtime.Object
		metav1.Object
	}{
		"typed":         pod("a", ""),
		"metadata only": &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}},
		"unstructured": &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"namespace": "ns", "name": "a"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				upstream := fcache.NewFakeControllerSource()
				upstream.Add(obj)
				j := startWithSource(t, upstream, nil, func(i cache.SharedIndexInformer) controller.Source[reconcile.Request] {
					return controller.For(i)
				})
				require.Equal(t, []string{"ns/a"}, j.take())
				upstream.Modify(obj)
				require.Equal(t, []string{"ns/a"}, j.take())
				upstream.Delete(obj)
				require.Equal(t, []string{"ns/a"}, j.take())
			})
		})
	}
}

// recordingEnqueuer records each key that a source enqueues.
type recordingEnqueuer struct{ keys []reconcile.Request }

func (g *recordingEnqueuer) Add(key reconcile.Request)           { g.keys = append(g.keys, key) }
func (g *recordingEnqueuer) AddBackground(key reconcile.Request) { g.keys = append(g.keys, key) }

// An update leads to the keys of the old and of the new object, and to each of them once.
func TestUpdateGivesEachKeyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := fcache.NewFakeControllerSource()
		upstream.Add(pod("a", "one"))
		informer := cache.NewSharedIndexInformer(upstream, &corev1.Pod{}, 0, cache.Indexers{})
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() { informer.RunWithContext(ctx) })
		enqueuer, source := &recordingEnqueuer{}, controller.Owns(informer, controller.Owner{Group: "apps", Kind: "ReplicaSet"})
		ended.Go(func() { assert.NoError(t, source.Run(ctx, enqueuer, func() {})) })
		for _, step := range []struct {
			owner string
			want  []string
		}{{"", []string{"ns/one"}}, {"one", []string{"ns/one"}}, {"two", []string{"ns/one", "ns/two"}}} {
			if step.owner != "" {
				upstream.Modify(pod("a", step.owner))
			}
			synctest.Wait()
			var keys []string
			for _, key := range enqueuer.keys {
				keys = append(keys, key.String())
			}
			require.Equal(t, step.want, keys)
			enqueuer.keys = nil
		}
		cancel()
		ended.Wait()
		upstream.Shutdown()
	})
}

func TestOwns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := fcache.NewFakeControllerSource()
		j := startWithSource(t, upstream, &corev1.Pod{}, func(i cache.SharedIndexInformer) controller.Source[reconcile.Request] {
			return controller.Owns(i, controller.Owner{Group: "apps", Kind: "ReplicaSet"})
		})
		upstream.Add(pod("a", ""))
		require.Empty(t, j.take())
		upstream.Modify(pod("a", "one"))
		require.Equal(t, []string{"ns/one"}, j.take())
		upstream.Modify(pod("a", "two"))
		require.ElementsMatch(t, []string{"ns/one", "ns/two"}, j.take())
		foreign := pod("b", "three")
		foreign.OwnerReferences[0].APIVersion = "example.com/v1"
		upstream.Add(foreign)
		require.Empty(t, j.take())
		upstream.Delete(pod("a", "two"))
		require.Equal(t, []string{"ns/two"}, j.take())
	})
}

func TestOwnsClusterScoped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := fcache.NewFakeControllerSource()
		upstream.Add(pod("a", "one"))
		j := startWithSource(t, upstream, &corev1.Pod{}, func(i cache.SharedIndexInformer) controller.Source[reconcile.Request] {
			return controller.Owns(i, controller.Owner{Group: "apps", Kind: "ReplicaSet", ClusterScoped: true})
		})
		require.Equal(t, []string{"/one"}, j.take())
	})
}

// TestInitialListWaitsForLiveEvents lists many objects and then changes one before the workers have got far.
func TestInitialListWaitsForLiveEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := fcache.NewFakeControllerSource()
		for _, name := range []string{"a", "b", "c", "d"} {
			upstream.Add(pod(name, ""))
		}
		informer := cache.NewSharedIndexInformer(upstream, &corev1.Pod{}, 0, cache.Indexers{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			informer.RunWithContext(ctx)
		}()
		t.Cleanup(func() {
			cancel()
			<-ended
			upstream.Shutdown()
		})
		var order []string
		c, err := controller.New(reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			order = append(order, r.Name)
			time.Sleep(time.Second)
			return reconcile.Result{}, nil
		}), controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Watch(controller.For(informer))
		start(t, c)
		late := "d"
		if order[0] == late { // the list has no order
			late = "c"
		}
		changed := pod(late, "")
		changed.Labels = map[string]string{"changed": "yes"}
		upstream.Modify(changed)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, order, 4)
		require.Equal(t, late, order[1], "only the one that was running already goes before")
	})
}

func TestPredicates(t *testing.T) {
	base := pod("a", "one")
	base.Labels, base.Generation, base.ResourceVersion = map[string]string{"app": "web"}, 1, "1"
	with := func(edit func(*corev1.Pod)) controller.Event {
		changed := base.DeepCopy()
		edit(changed)
		return controller.Event{Type: controller.Updated, Old: base, Object: changed}
	}
	created := controller.Event{Type: controller.Created, Object: base}
	relabelled := with(func(p *corev1.Pod) { p.Labels = nil })
	bumped := with(func(p *corev1.Pod) { p.Generation++ })
	terminating := with(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })
	disowned := with(func(p *corev1.Pod) { p.OwnerReferences = nil })
	status := with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	resync := controller.Event{Type: controller.Updated, Old: base, Object: base, Resync: true}
	web := controller.Matches(labels.SelectorFromSet(labels.Set{"app": "web"}))
	never := controller.Not(web)
	for name, tc := range map[string]struct {
		predicate controller.Predicate
		event     controller.Event
		want      bool
	}{
		"generation: created":     {controller.GenerationChanged(), created, true},
		"generation: bumped":      {controller.GenerationChanged(), bumped, true},
		"generation: terminating": {controller.GenerationChanged(), terminating, true},
		"generation: status":      {controller.GenerationChanged(), status, false},
		"metadata: labels":        {controller.MetadataChanged(), relabelled, true},
		"metadata: owner":         {controller.MetadataChanged(), disowned, true},
		"metadata: terminating":   {controller.MetadataChanged(), terminating, true},
		"metadata: status":        {controller.MetadataChanged(), status, false},
		"changed: resync":         {controller.Changed(), resync, false},
		"changed: status":         {controller.Changed(), status, true},
		"matches":                 {web, status, true},
		"matched before":          {web, relabelled, true},
		"not":                     {never, status, false},
		"any":                     {controller.Any(never, web), status, true},
		"any of none":             {controller.Any(never), status, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, tc.predicate(tc.event)) })
	}
}

func TestChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := make(chan reconcile.Request)
		j := &recordingReconciler{}
		c, err := controller.New(j, controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Watch(controller.Channel("webhook", keys))
		start(t, c)
		keys <- request("a")
		keys <- request("b")
		require.Equal(t, []string{"/a", "/b"}, j.take())
		close(keys)
		synctest.Wait()
		require.NoError(t, c.Ready(), "the controller continues")
	})
}

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, failures := 0, 0
		source := controller.Poll(controller.PollConfig{
			Name: "other system", Period: time.Minute, OnError: func(error) { failures++ },
		}, func(context.Context) ([]reconcile.Request, error) {
			if calls++; calls == 2 {
				return nil, errors.New("no answer")
			}
			return []reconcile.Request{request("a")}, nil
		})
		j := &recordingReconciler{}
		c, err := controller.New(j, controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Watch(source)
		start(t, c)
		require.Equal(t, []string{"/a"}, j.take())
		time.Sleep(time.Minute)
		require.Empty(t, j.take())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"/a"}, j.take())
		require.Equal(t, 1, failures)
	})
}

func TestFailingSourceEndsTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := controller.New(&recordingReconciler{}, controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Watch(controller.Poll(controller.PollConfig{Name: "broken"}, func(context.Context) ([]reconcile.Request, error) {
			return nil, nil
		}))
		require.ErrorContains(t, c.Start(t.Context()), `run controller "test": source broken: poll "broken": PollConfig.Period`)
	})
}

// TestEndThatComesFirst: an informer that runs in the controller's context may be at its end before the controller begins.
func TestEndThatComesFirst(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{})
	ended, end := context.WithCancel(t.Context())
	end()
	informer.RunWithContext(ended)
	for _, test := range []struct {
		ctx  context.Context
		fine bool
	}{{ended, true}, {t.Context(), false}} {
		c, err := controller.New(&recordingReconciler{}, controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Watch(controller.For(informer))
		if err := c.Start(test.ctx); test.fine {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "add event handler", "an informer of another life is a mistake")
		}
	}
}

// endingContext is a context whose end has not reached the contexts that are derived from it.
type endingContext struct{ context.Context }

func (endingContext) Err() error { return context.Canceled }

// An informer and a controller of one context end with it, in any order. The informer is first here: the source finds it ended
// before the controller's own context is.
func TestInformerThatEndsBeforeTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := fcache.NewFakeControllerSource()
		defer upstream.Shutdown()
		informer := cache.NewSharedIndexInformer(upstream, pod("a", ""), 0, cache.Indexers{})
		ctx, cancel := context.WithCancel(t.Context())
		ended, end := context.WithCancel(ctx)
		end()
		informer.RunWithContext(ended)
		c, err := controller.New(&recordingReconciler{}, controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Watch(controller.For(informer))
		done := make(chan error, 1)
		go func() { done <- c.Start(endingContext{ctx}) }()
		synctest.Wait()
		cancel()
		require.NoError(t, <-done)
	})
}

// never is a source that does not come to an end of its initial list.
type never struct{}

func (never) Name() string { return "slow" }

func (never) Run(ctx context.Context, _ controller.Enqueuer[reconcile.Request], _ func()) error {
	<-ctx.Done()
	return nil
}

func TestNotReadySaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &recordingReconciler{}
		c, err := controller.New(j, controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Watch(never{})
		c.Enqueue(request("a"))
		start(t, c)
		require.ErrorContains(t, c.Ready(), "waiting for the initial list of slow")
		require.Empty(t, j.take(), "no key runs before the sources have synced")
	})
}
