package expect_test

import (
	"fmt"
	"sync"
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

// BenchmarkReadParallel reads from the store's table, and for comparison the same snapshots from a sync.Map.
func BenchmarkReadParallel(b *testing.B) {
	store := expect.NewExpectationsStore()
	var snapshots sync.Map
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = fmt.Sprint("ns/", i)
		_ = store.ExpectCreations(logr.Discard(), keys[i], "a")
		snapshots.Store(keys[i], store.GetCreateExpectations(keys[i]))
	}
	for name, read := range map[string]func(string) []types.UID{
		"store": store.GetCreateExpectations,
		"sync.Map": func(key string) []types.UID {
			found, _ := snapshots.Load(key)
			uids, _ := found.([]types.UID)
			return uids
		},
	} {
		b.Run(name, func(b *testing.B) {
			var workers atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := int(workers.Add(1)) * 37; pb.Next(); i++ {
					_ = read(keys[i%len(keys)])
				}
			})
		})
	}
}
