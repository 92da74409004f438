package storage_test

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/berth-dev/berth/controlplane/etcd"
	"github.com/berth-dev/berth/controlplane/storage"
)

// startEtcd starts an etcd and returns a socket before it, and how many connections that has accepted.
func startEtcd(t *testing.T) (socket string, accepted *atomic.Int32) {
	dir := t.TempDir()
	behind := filepath.Join(dir, "run", "etcd.sock")
	server := etcd.New(etcd.Config{DataDir: filepath.Join(dir, "data"), Socket: behind, LogLevel: "error", UnsafeNoFsync: true})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- server.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(t, err)
	}
	socket, accepted = filepath.Join(dir, "s"), new(atomic.Int32)
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			front, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			back, err := net.Dial("unix", behind)
			if err != nil {
				front.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{front, back}, {back, front}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					pair[0].Close()
				}()
			}
		}
	}()
	return socket, accepted
}

// options are the options of a resource as upstream makes them.
type options struct{ config *storagebackend.Config }

func (o options) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{StorageConfig: o.config.ForResource(resource), Decorator: generic.UndecoratedStorage}, nil
}

// open returns the storage of ConfigMaps under a name of its own.
func open(t *testing.T, getter generic.RESTOptionsGetter, resource string) (apistorage.Interface, factory.DestroyFunc) {
	options, err := getter.GetRESTOptions(schema.GroupResource{Resource: resource}, nil)
	require.NoError(t, err)
	prefix := "/" + resource
	store, destroy, err := options.Decorator(options.StorageConfig, prefix,
		func(object runtime.Object) (string, error) {
			return key(resource, object.(*corev1.ConfigMap).Name), nil
		},
		func() runtime.Object { return &corev1.ConfigMap{} }, func() runtime.Object { return &corev1.ConfigMapList{} },
		func(object runtime.Object) (labels.Set, fields.Set, error) {
			return object.(*corev1.ConfigMap).Labels, fields.Set{"metadata.name": object.(*corev1.ConfigMap).Name}, nil
		}, nil, nil)
	require.NoError(t, err)
	return store, destroy
}

func newConfig(t *testing.T) *storagebackend.Config {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	codecs := serializer.NewCodecFactory(scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return storagebackend.NewDefaultConfig("registry",
		codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), corev1.SchemeGroupVersion, corev1.SchemeGroupVersion))
}

func key(resource, name string) string { return "/" + resource + "/" + name }

func TestResourcesShareAConnection(t *testing.T) {
	socket, accepted := startEtcd(t)
	config := newConfig(t)
	connection, err := storage.Open(etcd.Endpoint(socket), func() { t.Error("an object cannot be read") })
	require.NoError(t, err)
	getter := connection.Share(options{config}, func(resource schema.GroupResource) bool { return resource.Resource == "cached" })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	var ends []factory.DestroyFunc
	stores := map[string]apistorage.Interface{}
	for _, resource := range []string{"plain", "cached", "ended"} {
		store, end := open(t, getter, resource)
		stores[resource] = store
		if ends = append(ends, end); resource != "cached" {
			continue
		}
		require.Eventually(t, func() bool { return store.ReadinessCheck() == nil }, time.Minute, time.Millisecond)
	}
	use := func(resource, name string) {
		store := stores[resource]
		watch, err := store.Watch(ctx, "/"+resource+"/", apistorage.ListOptions{Recursive: true, Predicate: apistorage.Everything})
		require.NoError(t, err, resource)
		defer watch.Stop()
		created := &corev1.ConfigMap{}
		require.NoError(t, store.Create(ctx, key(resource, name), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, created, 0), resource)
		event := <-watch.ResultChan()
		object := event.Object
		if cached, ok := object.(runtime.CacheableObject); ok { // that of a cache
			object = cached.GetObject()
		}
		require.IsType(t, &corev1.ConfigMap{}, object, resource)
		require.Equal(t, created.ResourceVersion, object.(*corev1.ConfigMap).ResourceVersion, resource)
		list := &corev1.ConfigMapList{}
		require.NoError(t, store.GetList(ctx, "/"+resource+"/", apistorage.ListOptions{Recursive: true, Predicate: apistorage.Everything}, list), resource)
		require.Len(t, list.Items, 1, resource)
		require.NoError(t, store.Delete(ctx, key(resource, name), &corev1.ConfigMap{}, nil,
			func(context.Context, runtime.Object) error { return nil }, nil, apistorage.DeleteOptions{}), resource)
	}
	use("plain", "a")
	connections := accepted.Load() // the client begins one that it gives up for another, and asks for the server's version over one
	use("cached", "a")
	use("ended", "a")
	ends[2]()
	ends[2]() // upstream calls it again for subresources
	use("plain", "b")
	use("cached", "b")
	require.Equal(t, connections, accepted.Load())
	ends[0]()
	ends[1]()
	require.NoError(t, connection.Close())
	require.Error(t, stores["plain"].Get(ctx, key("plain", "b"), apistorage.GetOptions{}, &corev1.ConfigMap{}))
}
