//go:build integration

package client_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedstoragev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/test/apiserver"
)

// liveAPI is a client that an informer can be made of, too.
type liveAPI[T client.Object, L runtime.Object] interface {
	client.API[T, L]
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// kindCase is what the live test has to know of a kind of object.
type kindCase[T client.Object, L runtime.Object, A liveAPI[T, L]] struct {
	resource  schema.GroupResource
	version   schema.GroupVersion
	kind      string
	namespace string // empty for a kind that has none
	example   T      // an empty object
	api       func(kubernetes.Interface) func(namespace string) A
	fresh     func(name string) T
	// filter and selector say the same: what the informer's cache is to hold. Without them it is all.
	filter   func(T) bool
	selector string
	// streamed lets the informer have its list as a stream of watch events.
	streamed bool
	// status changes the object's status, by a patch or an update. Nil for a kind without one.
	status func(ctx context.Context, c *client.Resource[T, L, A], current T, patch bool) error
}

// runConfigMaps plays a namespaced kind behind a filtered cache.
func runConfigMaps(t *testing.T, server *apiserver.Server) {
	const namespace = "live"
	_, err := server.Client(t, apiserver.Admin).CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	runKind(t, server, &kindCase[*corev1.ConfigMap, *corev1.ConfigMapList, typedcorev1.ConfigMapInterface]{
		resource: corev1.Resource("configmaps"), version: corev1.SchemeGroupVersion, kind: "ConfigMap",
		namespace: namespace, example: &corev1.ConfigMap{},
		api: func(clientset kubernetes.Interface) func(string) typedcorev1.ConfigMapInterface {
			return clientset.CoreV1().ConfigMaps
		},
		fresh: func(name string) *corev1.ConfigMap {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		},
		filter: func(obj *corev1.ConfigMap) bool {
			return obj.Labels["live"] != "" && obj.Labels["color"] != "hidden"
		},
		selector: "live,color!=hidden",
	})
}

// runVolumeAttachments plays a cluster-scoped kind with a status behind a cache of all.
func runVolumeAttachments(t *testing.T, server *apiserver.Server) {
	type attachment = storagev1.VolumeAttachment
	type resource = client.Resource[*attachment, *storagev1.VolumeAttachmentList, typedstoragev1.VolumeAttachmentInterface]
	runKind(t, server, &kindCase[*attachment, *storagev1.VolumeAttachmentList, typedstoragev1.VolumeAttachmentInterface]{
		resource: storagev1.Resource("volumeattachments"), version: storagev1.SchemeGroupVersion, kind: "VolumeAttachment",
		example: &attachment{}, streamed: true,
		api: func(clientset kubernetes.Interface) func(string) typedstoragev1.VolumeAttachmentInterface {
			return func(string) typedstoragev1.VolumeAttachmentInterface {
				return clientset.StorageV1().VolumeAttachments()
			}
		},
		fresh: func(name string) *attachment {
			volume := "volume"
			return &attachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "example.com", NodeName: "node",
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
			}}
		},
		status: func(ctx context.Context, c *resource, current *attachment, patch bool) (err error) {
			if patch {
				data := []byte(`{"status":{"attached":` + map[bool]string{true: "false", false: "true"}[current.Status.Attached] + `}}`)
				_, err = c.Patch(ctx, "", current.Name, client.Patch{Type: types.MergePatchType, Data: data},
					metav1.PatchOptions{}, "status")
				return err
			}
			current.Status.Attached = !current.Status.Attached
			_, err = c.UpdateStatus(ctx, current, metav1.UpdateOptions{})
			return err
		},
	})
}

// informer runs an informer of the kind until the test ends, whose watches are late and break.
func (k *kindCase[T, L, A]) informer(
	t *testing.T, clientset kubernetes.Interface, b *watchBreaker,
) cache.SharedIndexInformer {
	t.Helper()
	api := k.api(clientset)(k.namespace)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = k.selector
			return api.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = k.selector
			w, err := api.Watch(ctx, options)
			if err != nil {
				return nil, err
			}
			return b.delay(w), nil
		},
	}
	var source cache.ListerWatcher = unsupported{lw}
	if k.streamed {
		source = cache.ToListWatcherWithWatchListSemantics(lw, clientset)
	}
	informer := cache.NewSharedIndexInformer(source, k.example, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
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
	return informer
}

// watchBreaker makes watches late and breaks them.
type watchBreaker struct{ broken atomic.Int64 }

func (b *watchBreaker) count() int { return int(b.broken.Load()) }

// delay passes the events of a watch on, each up to liveLag after it came. Now and then it ends the watch, or claims
// that its version is too old, so that the informer must list again.
func (b *watchBreaker) delay(w watch.Interface) watch.Interface {
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
	send := func(event watch.Event, at time.Time) bool {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-proxy.StopChan():
			return false
		}
		select {
		case out <- event:
			return true
		case <-proxy.StopChan():
			return false
		}
	}
	go func() {
		defer close(out)
		defer w.Stop()
		for event := range queue {
			if !send(event.Event, event.at.Add(rand.N(liveLag))) {
				return
			}
			switch rand.IntN(60) {
			case 0:
				b.broken.Add(1)
				return
			case 1:
				b.broken.Add(1)
				expired := apierrors.NewResourceExpired("played").Status()
				send(watch.Event{Type: watch.Error, Object: &expired}, time.Now())
				return
			}
		}
	}()
	return proxy
}

// unreliableTransport is a connection that can be cut for one write.
type unreliableTransport struct {
	next atomic.Int64 // what is to happen to the next write
	lost atomic.Bool
}

const (
	cutRequest = iota // it never arrives
	cutAnswer         // it is carried out all the same
	cutNothing
)

var errLost = errors.New("the connection was cut by the test")

// cut sets what happens to the writes from now on, and reports whether one was cut since the last call.
func (l *unreliableTransport) cut(what int) (wasCut bool) {
	l.next.Store(int64(what))
	return l.lost.Swap(false)
}

func (l *unreliableTransport) connect(t *testing.T, config *rest.Config) kubernetes.Interface {
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return &cutter{inner, l} })
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) })
	clientset, err := kubernetes.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	return clientset
}

// cutter is the line as HTTP sees it.
type cutter struct {
	inner http.RoundTripper
	line  *unreliableTransport
}

var _ utilnet.RoundTripperWrapper = (*cutter)(nil)

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (c *cutter) WrappedRoundTripper() http.RoundTripper { return c.inner }

// RoundTrip implements http.RoundTripper.
func (c *cutter) RoundTrip(request *http.Request) (*http.Response, error) {
	next := c.line.next.Load()
	if request.Method == http.MethodGet || next >= cutNothing {
		return c.inner.RoundTrip(request)
	}
	c.line.lost.Store(true)
	if next == cutRequest {
		return nil, errLost
	}
	response, err := c.inner.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return nil, errLost
}
