//go:build integration

package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/test/apiserver"
)

const (
	// liveLag is the most that the informers of the live test lag behind.
	liveLag = 5 * time.Second
	// liveTime is how long each kind is played at least: some lags, so that much is written, seen and written again.
	liveTime = 30 * time.Second
	// liveTimeout bounds the run until everything that it tests has happened, with time to spare for a slow machine.
	liveTimeout = 3 * time.Minute
	liveKeys    = 6
	keep        = "example.com/keep" // a finalizer
)

// TestLive does everything to a few objects of a real API server while the informers' events come up to 5 s late,
// watches break, requests and answers are lost, and clients are made anew. After each write every way of reading must
// show exactly what the API server itself has: the test is the only writer, so nothing else is new enough.
func TestLive(t *testing.T) {
	server := apiserver.Start(t)
	for name, play := range map[string]func(*testing.T, *apiserver.Server){
		"ConfigMaps": runConfigMaps, "VolumeAttachments": runVolumeAttachments,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time is waited for
			play(t, server)
		})
	}
}

// kindRun is the test of one kind.
type kindRun[T client.Object, L runtime.Object, A liveAPI[T, L]] struct {
	*kindCase[T, L, A]
	t        *testing.T
	random   *rand.Rand
	client   *client.Resource[T, L, A] // what is tested
	line     *unreliableTransport      // between that client and the server
	direct   A                         // what the server has
	breaks   *watchBreaker
	want     map[string]T // what the server has, of what the cache is to hold
	all      map[string]T // and what it has beyond that
	writes   int
	lost     int
	restarts int
	pending  int
}

func runKind[T client.Object, L runtime.Object, A liveAPI[T, L]](
	t *testing.T, server *apiserver.Server, kind *kindCase[T, L, A],
) {
	seed := rand.Uint64()
	p := &kindRun[T, L, A]{kindCase: kind, t: t, random: rand.New(rand.NewPCG(seed, 0)), line: &unreliableTransport{}, breaks: &watchBreaker{}}
	p.direct = kind.api(server.Client(t, apiserver.Admin))(kind.namespace)
	clientset := p.line.connect(t, server.Config(t, apiserver.Admin))
	p.restart(clientset)
	p.checkOnce()
	happened := func() bool { return p.lost > 0 && p.pending > 0 && p.breaks.count() > 0 }
	for began := time.Now(); time.Since(began) < liveTime || !happened() && time.Since(began) < liveTimeout; {
		if p.random.IntN(200) == 0 {
			p.restart(clientset)
			p.restarts++
		}
		p.write()
		p.checkOnce()
		p.read()
		p.pending = max(p.pending, p.client.Pending())
	}
	t.Logf("%s, seed %d: %d writes, %d of them lost, at most %d not in the cache, %d watches broken, %d restarts",
		kind.resource, seed, p.writes, p.lost, p.pending, p.breaks.count(), p.restarts)
	require.NotZero(t, p.lost)
	require.NotZero(t, p.pending, "the informer was never late, so nothing was tested")
	require.NotZero(t, p.breaks.count())
}

// restart makes the client and its informer anew, as a new process would.
func (p *kindRun[T, L, A]) restart(clientset kubernetes.Interface) {
	informer := p.informer(p.t, clientset, p.breaks)
	c, err := client.New(p.api(clientset), informer, client.Config[T]{Resource: p.resource, Filter: p.filter})
	require.NoError(p.t, err)
	p.client = c
}

// checkOnce asks the server what there is.
func (p *kindRun[T, L, A]) checkOnce() {
	p.t.Helper()
	list, err := p.direct.List(p.t.Context(), metav1.ListOptions{LabelSelector: "live=" + p.resource.Resource})
	require.NoError(p.t, err)
	p.want, p.all = map[string]T{}, map[string]T{}
	require.NoError(p.t, meta.EachListItem(list, func(item runtime.Object) error {
		obj := item.(T)
		p.all[obj.GetName()] = obj
		if p.filter == nil || p.filter(obj) {
			p.want[obj.GetName()] = obj
		}
		return nil
	}))
}

// write makes one random change, which sometimes does not reach the server, and sometimes does but is not answered.
func (p *kindRun[T, L, A]) write() {
	ctx, name := p.t.Context(), fmt.Sprint("live-", p.random.IntN(liveKeys))
	cut := p.random.IntN(8)
	p.line.cut(cut)
	err := p.change(ctx, name)
	p.writes++
	if p.line.cut(cutNothing) {
		p.lost++
		require.Error(p.t, err)
		return
	}
	require.NoError(p.t, err)
}

func (p *kindRun[T, L, A]) change(ctx context.Context, name string) error {
	current, exists := p.all[name]
	if !exists {
		if p.random.IntN(3) == 0 {
			return p.apply(ctx, name)
		}
		obj := p.fresh(name)
		p.edit(obj)
		_, err := p.client.Create(ctx, obj, metav1.CreateOptions{})
		return err
	}
	switch p.random.IntN(12) {
	case 0:
		all := metav1.ListOptions{LabelSelector: "live=" + p.resource.Resource}
		return p.client.DeleteCollection(ctx, p.namespace, metav1.DeleteOptions{}, all)
	case 1, 2, 3:
		return p.client.Delete(ctx, p.namespace, name, metav1.DeleteOptions{})
	case 4, 5:
		return p.patch(ctx, name, map[string]any{"metadata": p.metadata(current)})
	case 6:
		return p.apply(ctx, name)
	case 7, 8:
		if p.status != nil {
			return p.status(ctx, p.client, current.DeepCopyObject().(T), p.random.IntN(2) == 0)
		}
	}
	// What is read through the client is as new as can be, or this would end in a conflict.
	if read, err := p.client.Get(ctx, p.namespace, name); err == nil {
		current = read
	}
	current = current.DeepCopyObject().(T)
	p.edit(current)
	_, err := p.client.Update(ctx, current, metav1.UpdateOptions{})
	return err
}

// edit changes what decides whether and how an object is shown.
func (p *kindRun[T, L, A]) edit(obj T) {
	obj.SetLabels(p.labels())
	// A finalizer can be added only while the object is not being deleted.
	if obj.GetFinalizers() != nil || obj.GetDeletionTimestamp() != nil || p.random.IntN(3) > 0 {
		obj.SetFinalizers(nil)
	} else {
		obj.SetFinalizers([]string{keep})
	}
}

func (p *kindRun[T, L, A]) labels() map[string]string {
	return map[string]string{
		"live": p.resource.Resource, "color": []string{"red", "blue", "hidden"}[p.random.IntN(3)],
		"random": fmt.Sprint(p.random.Int()),
	}
}

// metadata is an edit as a patch.
func (p *kindRun[T, L, A]) metadata(of T) map[string]any {
	edited := of.DeepCopyObject().(T)
	p.edit(edited)
	return map[string]any{"labels": edited.GetLabels(), "finalizers": edited.GetFinalizers()}
}

func (p *kindRun[T, L, A]) patch(ctx context.Context, name string, content map[string]any) error {
	data, err := json.Marshal(content)
	require.NoError(p.t, err)
	_, err = p.client.Patch(ctx, p.namespace, name, client.Patch{Type: types.MergePatchType, Data: data},
		metav1.PatchOptions{})
	return err
}

func (p *kindRun[T, L, A]) apply(ctx context.Context, name string) error {
	obj := p.fresh(name)
	obj.SetLabels(p.labels())
	obj.GetObjectKind().SetGroupVersionKind(p.version.WithKind(p.kind))
	data, err := json.Marshal(obj)
	require.NoError(p.t, err)
	force := true
	_, err = p.client.Patch(ctx, p.namespace, name, client.Patch{Type: types.ApplyPatchType, Data: data},
		metav1.PatchOptions{FieldManager: "live", Force: &force})
	return err
}

// read compares every way of reading with what the server has.
func (p *kindRun[T, L, A]) read() {
	ctx, t := p.t.Context(), p.t
	red := labels.SelectorFromSet(labels.Set{"color": "red"})
	one := fields.OneTermEqualSelector("metadata.name", "live-1")
	for _, options := range []client.ListOptions{
		{}, {Namespace: p.namespace}, {Labels: red}, {Namespace: p.namespace, Fields: one},
	} {
		want, got := map[string]string{}, map[string]string{}
		for name, obj := range p.want {
			if (options.Labels == nil || red.Matches(labels.Set(obj.GetLabels()))) && (options.Fields == nil || name == "live-1") {
				want[name] = obj.GetResourceVersion()
			}
		}
		list, err := p.client.List(ctx, options)
		require.NoError(t, err)
		for _, obj := range list {
			require.NotContains(t, got, obj.GetName(), "listed twice")
			got[obj.GetName()] = obj.GetResourceVersion()
		}
		require.Equal(t, want, got, "list %+v after %d writes", options, p.writes)
	}
	for i := range liveKeys {
		name := fmt.Sprint("live-", i)
		obj, err := p.client.Get(ctx, p.namespace, name)
		want, exists := p.want[name]
		if !exists {
			require.True(t, apierrors.IsNotFound(err), "get %s: %v, %v", name, obj, err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want.GetResourceVersion(), obj.GetResourceVersion(), name)
	}
}
