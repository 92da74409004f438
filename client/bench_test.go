package client_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-dev/berth/client"
)

func filled(b *testing.B) (*fakeServer, *resources, corelisters.ConfigMapLister) {
	b.Helper()
	s := newFakeServer()
	informer := s.informer(nil) // never run: the benchmark fills its store
	for i := range 10_000 {
		obj := configMap(fmt.Sprint("name-", i))
		obj.ResourceVersion = "1"
		if err := informer.GetIndexer().Add(obj); err != nil {
			b.Fatal(err)
		}
	}
	s.version = 1
	c, err := client.New(s.in, informer, client.Config[*corev1.ConfigMap]{Resource: resource})
	if err != nil {
		b.Fatal(err)
	}
	return s, c, corelisters.NewConfigMapLister(informer.GetIndexer())
}

func BenchmarkGetFromInformer(b *testing.B) {
	_, _, lister := filled(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := lister.ConfigMaps("ns").Get("name-77"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	_, c, _ := filled(b)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Get(ctx, "ns", "name-77"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGetWithPendingWrites reads a key that was not written while 1,000 writes of others are not yet in the cache.
func BenchmarkGetWithPendingWrites(b *testing.B) {
	_, c, _ := filled(b)
	ctx := context.Background()
	for i := range 1000 {
		if _, err := c.Create(ctx, configMap(fmt.Sprint("new-", i)), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Get(ctx, "ns", "name-77"); err != nil {
			b.Fatal(err)
		}
	}
}
