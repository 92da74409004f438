package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/client"
)

// readChecker knows, for each key, a version that no later read may be older than: that of the last own write, or of the
// last state read.
type readChecker struct {
	t      *testing.T
	server *fakeServer
	filter func(*corev1.ConfigMap) bool
	floor  map[string]int64
}

// recordWrite notes that an own write to the key, or all, has ended; whatever it did is in the history by now. Only that it
// happened is noted, not what others did after it, so the floor is the key's last change.
func (w *readChecker) recordWrite(keys ...string) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	for _, key := range keys {
		if history := w.server.history[key]; len(history) > 0 {
			w.floor[key] = max(w.floor[key], history[len(history)-1].version)
		}
	}
}

// checkRead checks that what was read of a key, nil for nothing, is a state that it had at or after its floor.
func (w *readChecker) checkRead(how, key string, obj *corev1.ConfigMap) {
	w.t.Helper()
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	history := append([]revision{{}}, w.server.history[key]...) // in the beginning there was nothing
	for i, then := range history {
		last := i == len(history)-1
		if !last && history[i+1].version <= w.floor[key] {
			continue // over before the floor
		}
		if w.same(then.obj, obj) {
			w.floor[key] = max(w.floor[key], then.version)
			return
		}
	}
	w.t.Fatalf("%s read %v of %s, which is older than version %d; history %v",
		how, describe(obj), key, w.floor[key], history)
}

func (w *readChecker) same(then, read *corev1.ConfigMap) bool {
	if then == nil || !w.filter(then) {
		return read == nil
	}
	return read != nil && then.ResourceVersion == read.ResourceVersion
}

// String shows a moment in messages.
func (m revision) String() string {
	if m.obj == nil {
		return fmt.Sprintf("%d:gone", m.version)
	}
	return fmt.Sprintf("%d:%s", m.version, m.obj.Labels["color"])
}

func describe(obj *corev1.ConfigMap) string {
	if obj == nil {
		return "nothing"
	}
	return "version " + obj.ResourceVersion
}

// TestReadsNeverGoBack lets a client and another writer do everything to a few keys, with informers that lag up to 5 s,
// watches that break, answers that are lost, and restarts, and checks every read against the history.
func TestReadsNeverGoBack(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	for name, filter := range map[string]func(*corev1.ConfigMap) bool{
		"whole cache":    func(*corev1.ConfigMap) bool { return true },
		"filtered cache": func(c *corev1.ConfigMap) bool { return c.Labels["color"] != "hidden" },
	} {
		t.Run(name, func(t *testing.T) {
			for range rounds {
				seed := rand.Uint64()
				synctest.Test(t, func(t *testing.T) {
					t.Logf("seed %d", seed)
					(&randomRun{random: rand.New(rand.NewPCG(seed, 0)), filter: filter}).run(t)
				})
			}
		})
	}
}

// randomRun is one run of the random test.
type randomRun struct {
	random *rand.Rand
	filter func(*corev1.ConfigMap) bool
	server *fakeServer
	client *resources
	w      *readChecker
}

var keys = []string{"x/a", "x/b", "x/c", "y/a", "y/b"}

func (g *randomRun) run(t *testing.T) {
	g.server = newFakeServer()
	lags := rand.New(rand.NewPCG(g.random.Uint64(), 0))
	var mu sync.Mutex
	g.server.lag = func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(lags.IntN(int(5 * time.Second)))
	}
	g.w = &readChecker{t: t, server: g.server, filter: g.filter, floor: map[string]int64{}}
	config := client.Config[*corev1.ConfigMap]{Filter: g.filter}
	g.client = connect(t, g.server, config)
	for range 300 {
		time.Sleep(time.Duration(g.random.IntN(int(500 * time.Millisecond))))
		switch g.random.IntN(20) {
		case 0:
			g.server.breakWatches()
		case 1:
			if g.random.IntN(4) == 0 {
				g.client = connect(t, g.server, config) // a restart
			}
		case 2, 3, 4, 5:
			g.others()
		default:
			g.write(t.Context())
		}
		g.read(t)
	}
	g.server.fault = func(string) (error, error) { return nil, nil }
	time.Sleep(time.Minute)
	g.server.mu.Lock()
	for _, key := range keys {
		if history := g.server.history[key]; len(history) > 0 {
			g.w.floor[key] = history[len(history)-1].version // in the end reads show the end
		}
	}
	g.server.mu.Unlock()
	g.read(t)
}

func (g *randomRun) pick() (key, namespace, name string) {
	key = keys[g.random.IntN(len(keys))]
	namespace, name, _ = cache.SplitMetaNamespaceKey(key)
	return key, namespace, name
}

func (g *randomRun) pick1(list ...string) string { return list[g.random.IntN(len(list))] }

func (g *randomRun) edit(obj *corev1.ConfigMap) *corev1.ConfigMap {
	obj = obj.DeepCopy()
	obj.Labels = map[string]string{"color": g.pick1("red", "blue", "hidden")}
	obj.Finalizers = nil
	if g.random.IntN(3) == 0 {
		obj.Finalizers = []string{"example.com/keep"}
	}
	return obj
}

// write does something through the client, and sometimes the answer is lost.
func (g *randomRun) write(ctx context.Context) {
	key, namespace, name := g.pick()
	lost := g.random.IntN(6) == 0
	g.server.fault = func(verb string) (error, error) {
		if lost && verb != "list" {
			return nil, context.DeadlineExceeded
		}
		return nil, nil
	}
	written := []string{key}
	fresh := g.edit(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	var err error
	switch g.random.IntN(8) {
	case 0, 1, 2:
		_, err = g.client.Create(ctx, fresh, metav1.CreateOptions{})
	case 3:
		_, err = g.client.Update(ctx, fresh, metav1.UpdateOptions{})
	case 4:
		var current *corev1.ConfigMap
		if current, err = g.client.Get(ctx, namespace, name); err == nil {
			_, err = g.client.Update(ctx, g.edit(current), metav1.UpdateOptions{})
		}
	case 5:
		patch := client.Patch{Type: types.MergePatchType, Data: []byte("p")}
		_, err = g.client.Patch(ctx, namespace, name, patch, metav1.PatchOptions{})
	case 6:
		red := metav1.ListOptions{LabelSelector: "color=red"}
		err = g.client.DeleteCollection(ctx, namespace, metav1.DeleteOptions{}, red)
		written = keys
	default:
		err = g.client.Delete(ctx, namespace, name, metav1.DeleteOptions{})
	}
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		g.w.recordWrite(slices.DeleteFunc(slices.Clone(written), func(k string) bool { return k[0] != key[0] })...)
	} else if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		g.w.t.Fatal(fmt.Errorf("write %s: %w", key, err))
	}
}

// others changes the server behind the client's back.
func (g *randomRun) others() {
	key, namespace, name := g.pick()
	g.server.mu.Lock()
	defer g.server.mu.Unlock()
	current, exists := g.server.objects[key]
	switch {
	case !exists:
		g.server.store(watch.Added, g.edit(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(fmt.Sprint("other-", g.server.version)),
		}}))
	case g.random.IntN(2) == 0:
		g.server.remove(current)
	default:
		g.server.in(namespace).replace(current, g.edit(current))
	}
}

// read reads everything, singly and in lists.
func (g *randomRun) read(t *testing.T) {
	for _, key := range keys {
		namespace, name, _ := cache.SplitMetaNamespaceKey(key)
		obj, err := g.client.Get(t.Context(), namespace, name)
		if apierrors.IsNotFound(err) {
			obj, err = nil, nil
		}
		require.NoError(t, err)
		g.w.checkRead("Get", key, obj)
	}
	for _, namespace := range []string{"x", "y", ""} {
		list, err := g.client.List(t.Context(), client.ListOptions{Namespace: namespace})
		require.NoError(t, err)
		found := map[string]*corev1.ConfigMap{}
		for _, obj := range list {
			key := obj.Namespace + "/" + obj.Name
			require.NotContains(t, found, key, "listed twice")
			found[key] = obj
		}
		for _, key := range keys {
			if namespace == "" || key[:1] == namespace {
				g.w.checkRead("List of "+namespace, key, found[key])
			}
		}
	}
}
