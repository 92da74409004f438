package expect_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/expect"
)

// BenchmarkCycle is what one reconcile does: sync, read both, record one creation, and the sync that meets it.
func BenchmarkCycle(b *testing.B) {
	store := expect.NewExpectationsStore()
	live := []types.UID{"a", "b", "c"}
	created := []types.UID{"a", "b", "c", "d"}
	b.ReportAllocs()
	for b.Loop() {
		store.SyncExpectations(key, live, nil)
		_ = store.GetCreateExpectations(key)
		_ = store.GetDeleteExpectations(key)
		_ = store.ExpectCreations(logr.Discard(), key, "d")
		store.SyncExpectations(key, created, nil)
	}
}

func BenchmarkReadParallel(b *testing.B) {
	store := expect.NewExpectationsStore()
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = fmt.Sprint("ns/", i)
		_ = store.ExpectCreations(logr.Discard(), keys[i], "a")
	}
	var workers atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := int(workers.Add(1)) * 37; pb.Next(); i++ {
			_ = store.GetCreateExpectations(keys[i%len(keys)])
		}
	})
}
