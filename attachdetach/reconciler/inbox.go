package reconciler

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/internal/wakeup"
)

// inbox collects what the loop has to reconcile. Its methods record and return, so that stores may call them while locked.
type inbox struct {
	wake wakeup.Signal // the inbox may have content

	mu sync.Mutex // guards batch
	batch
}

// batch is the content of the inbox.
type batch struct {
	pairs   map[cache.VolumeNode]struct{}
	nodes   map[types.NodeName]struct{} // the node itself changed
	reports map[types.NodeName]struct{} // its status is to be written
	written []writeResult
}

// writeResult is the result of writing one node's status: the pairs that waited for it, and the error.
type writeResult struct {
	node  types.NodeName
	pairs []cache.VolumeNode
	err   error
}

func newInbox() *inbox { return &inbox{wake: wakeup.NewSignal()} }

func (i *inbox) update(f func(*batch)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f(&i.batch)
	i.wake.Notify()
}

func (i *inbox) addPair(pair cache.VolumeNode) {
	i.update(func(b *batch) {
		if pair.Volume == "" {
			addTo(&b.reports, pair.Node)
			return
		}
		addTo(&b.pairs, pair)
	})
}

func (i *inbox) addNode(node types.NodeName) { i.update(func(b *batch) { addTo(&b.nodes, node) }) }

func (i *inbox) addResult(result writeResult) {
	i.update(func(b *batch) { b.written = append(b.written, result) })
}

func addTo[K comparable](set *map[K]struct{}, key K) {
	if *set == nil {
		*set = make(map[K]struct{})
	}
	(*set)[key] = struct{}{}
}

// drain empties the inbox and returns its content.
func (i *inbox) drain() batch {
	i.mu.Lock()
	defer i.mu.Unlock()
	drained := i.batch
	i.batch = batch{}
	return drained
}
