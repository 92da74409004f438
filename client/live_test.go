package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/client"
)

// liveLag is the most that the informer of the live test lags behind; BERTH_TEST_LAG sets another.
const liveLag = time.Second

// TestLive does random writes to a real API server while the informer's events are held up, and compares every read
// with what was written. It runs if BERTH_TEST_KUBECONFIG names the kubeconfig of an administrator.
func TestLive(t *testing.T) {
	path := os.Getenv("BERTH_TEST_KUBECONFIG")
	if path == "" {
		t.Skip("BERTH_TEST_KUBECONFIG is not set")
	}
	lag := liveLag
	if text := os.Getenv("BERTH_TEST_LAG"); text != "" {
		var err error
		lag, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	config.QPS = -1
	http, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(http.Transport) })
	clientset, err := kubernetes.NewForConfigAndClient(config, http)
	require.NoError(t, err)
	const namespace = "default"
	prefix := fmt.Sprintf("live-%d-x", time.Now().UnixNano())
	selector := labels.SelectorFromSet(labels.Set{"test": prefix})
	t.Cleanup(func() {
		_ = clientset.CoreV1().ConfigMaps(namespace).DeleteCollection(context.Background(), metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: selector.String()})
	})
	c := liveClient(t, clientset, namespace, lag)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	p := &livePlay{t: t, c: c, random: rand.New(rand.NewPCG(seed, 0)), prefix: prefix, namespace: namespace,
		selector: selector, want: map[string]string{}}
	const steps = 2000
	pending := 0
	for range steps {
		p.write()
		p.read()
		pending = max(pending, c.Pending())
	}
	t.Logf("%d writes, at most %d of them not in the cache", steps, pending)
	require.Positive(t, pending, "the informer was never late, so nothing was tested")
}

type liveResource = client.Resource[*corev1.ConfigMap, *corev1.ConfigMapList, typedcorev1.ConfigMapInterface]

// liveClient makes a client over an informer whose events are late.
func liveClient(t *testing.T, clientset kubernetes.Interface, namespace string, lag time.Duration) *liveResource {
	t.Helper()
	api := clientset.CoreV1().ConfigMaps(namespace)
	informer := cache.NewSharedIndexInformer(unsupported{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return api.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := api.Watch(ctx, options)
			if err != nil {
				return nil, err
			}
			return late(w, lag), nil
		},
	}}, &corev1.ConfigMap{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	require.True(t, cache.WaitFor(ctx, "", informer.HasSyncedChecker()))
	c, err := client.New(clientset.CoreV1().ConfigMaps, informer, client.Config[*corev1.ConfigMap]{Resource: resource})
	require.NoError(t, err)
	return c
}

// late passes the events of a watch on, each up to lag after it came.
func late(w watch.Interface, lag time.Duration) watch.Interface {
	type arrival struct {
		watch.Event
		at time.Time
	}
	queue := make(chan arrival, 100_000)
	out := make(chan watch.Event)
	proxy := watch.NewProxyWatcher(out)
	go func() {
		defer close(queue)
		for event := range w.ResultChan() {
			queue <- arrival{event, time.Now()}
		}
	}()
	go func() {
		defer close(out)
		defer w.Stop()
		for event := range queue {
			timer := time.NewTimer(time.Until(event.at.Add(rand.N(lag))))
			select {
			case <-timer.C:
			case <-proxy.StopChan():
				timer.Stop()
				return
			}
			select {
			case out <- event.Event:
			case <-proxy.StopChan():
				return
			}
		}
	}()
	return proxy
}

// livePlay is the only writer of its objects, so it knows exactly what a read must show.
type livePlay struct {
	t         *testing.T
	c         *liveResource
	random    *rand.Rand
	prefix    string
	namespace string
	selector  labels.Selector
	want      map[string]string // resource version by name
}

func (p *livePlay) write() {
	ctx, t := p.t.Context(), p.t
	name := p.prefix + strconv.Itoa(p.random.IntN(6))
	_, exists := p.want[name]
	fresh := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name, Labels: map[string]string{"test": p.prefix}},
		Data:       map[string]string{"random": strconv.Itoa(p.random.Int())},
	}
	var written *corev1.ConfigMap
	var err error
	switch op := p.random.IntN(10); {
	case !exists:
		written, err = p.c.Create(ctx, fresh, metav1.CreateOptions{})
	case op == 0:
		all := metav1.ListOptions{LabelSelector: p.selector.String()}
		err = p.c.DeleteCollection(ctx, p.namespace, metav1.DeleteOptions{}, all)
		require.NoError(t, err)
		clear(p.want)
		return
	case op < 4:
		require.NoError(t, p.c.Delete(ctx, p.namespace, name, metav1.DeleteOptions{}))
		delete(p.want, name)
		return
	case op < 6:
		written, err = p.c.Patch(ctx, p.namespace, name, client.Patch{
			Type: types.MergePatchType, Data: fmt.Appendf(nil, `{"data":{"patched":"%d"}}`, p.random.Int()),
		}, metav1.PatchOptions{})
	default:
		current, getErr := p.c.Get(ctx, p.namespace, name)
		require.NoError(t, getErr)
		// With the version that was read: a stale read would end in a conflict.
		fresh.ResourceVersion = current.ResourceVersion
		written, err = p.c.Update(ctx, fresh, metav1.UpdateOptions{})
	}
	require.NoError(t, err)
	p.want[name] = written.ResourceVersion
}

func (p *livePlay) read() {
	got := map[string]string{}
	list, err := p.c.List(p.t.Context(), client.ListOptions{Namespace: p.namespace, Labels: p.selector})
	require.NoError(p.t, err)
	for _, obj := range list {
		got[obj.Name] = obj.ResourceVersion
	}
	require.Equal(p.t, p.want, got)
	for i := range 6 {
		name := p.prefix + strconv.Itoa(i)
		obj, err := p.c.Get(p.t.Context(), p.namespace, name)
		if version, exists := p.want[name]; exists {
			require.NoError(p.t, err)
			require.Equal(p.t, version, obj.ResourceVersion)
		} else {
			require.True(p.t, apierrors.IsNotFound(err))
		}
	}
}
