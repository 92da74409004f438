package storage_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/berth-dev/berth/controlplane/etcd"
	"github.com/berth-dev/berth/controlplane/storage"
)

// TestUnreadableObjectsAreReported stores an object, and then what is none in its place, or what seems to be encrypted.
func TestUnreadableObjectsAreReported(t *testing.T) {
	socket, _ := startEtcd(t)
	var reported atomic.Int32
	connection, err := storage.Open(etcd.Endpoint(socket), func() { reported.Add(1) })
	require.NoError(t, err)
	store, end := open(t, connection.Share(options{newConfig(t)}, func(schema.GroupResource) bool { return false }), "plain")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	get := func() error { return store.Get(ctx, key("plain", "a"), apistorage.GetOptions{}, &corev1.ConfigMap{}) }
	require.NoError(t, store.Create(ctx, key("plain", "a"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, nil, 0))
	require.NoError(t, get())
	require.True(t, apistorage.IsNotFound(store.Get(ctx, key("plain", "b"), apistorage.GetOptions{}, &corev1.ConfigMap{})))
	require.Zero(t, reported.Load())

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint(socket)}})
	require.NoError(t, err)
	for _, damaged := range []string{"k8s\x00\x00\x00", "k8s:enc:aesgcm:v1:key:x"} {
		_, err := client.Put(ctx, "/registry"+key("plain", "a"), damaged)
		require.NoError(t, err)
		reported.Store(0)
		require.Error(t, get(), damaged)
		require.EqualValues(t, 1, reported.Load(), damaged)
		require.Error(t, store.GetList(ctx, "/plain/", apistorage.ListOptions{Recursive: true, Predicate: apistorage.Everything}, &corev1.ConfigMapList{}))
		require.EqualValues(t, 2, reported.Load(), damaged)
	}
	require.NoError(t, client.Close())
	end()
	require.NoError(t, connection.Close())
}
