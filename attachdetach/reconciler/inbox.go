package reconciler

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/statusupdater"
)

// inbox is what the loop has to look at. Its methods only note and return, so that stores may call them while locked.
type inbox struct {
	wake chan struct{} // has a value if there may be something

	mu sync.Mutex // guards mail
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

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (i *inbox) update(f func(*batch)) {
	i.mu.Lock()
	f(&i.batch)
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) addPair(pair cache.VolumeNode) {
	i.update(func(m *batch) {
		if pair.Volume == "" {
			addTo(&m.reports, pair.Node)
			return
		}
		addTo(&m.pairs, pair)
	})
}

func (i *inbox) addNode(node types.NodeName) { i.update(func(m *batch) { addTo(&m.nodes, node) }) }

func (i *inbox) addResult(result writeResult) {
	i.update(func(m *batch) { m.written = append(m.written, result) })
}

func addTo[K comparable](set *map[K]struct{}, key K) {
	if *set == nil {
		*set = make(map[K]struct{})
	}
	(*set)[key] = struct{}{}
}

// drain empties the inbox.
func (i *inbox) drain() batch {
	i.mu.Lock()
	defer i.mu.Unlock()
	taken := i.batch
	i.batch = batch{}
	return taken
}

// statusWriter writes the statuses of nodes: one write a node at a time, several nodes at once. What is asked for while a
// node is being written goes into that node's next write together.
type statusWriter struct {
	updater statusupdater.NodeStatusUpdater
	slots   chan struct{}
	results *inbox
	running sync.WaitGroup

	mu    sync.Mutex // guards nodes
	nodes map[types.NodeName]*nodeWrite
}

// nodeWrite is a node whose status is being written. again asks for another write, that pairs wait for.
type nodeWrite struct {
	dirty bool
	pairs []cache.VolumeNode
}

func newStatusWriter(updater statusupdater.NodeStatusUpdater, atOnce int, results *inbox) *statusWriter {
	return &statusWriter{
		updater: updater, slots: make(chan struct{}, atOnce), results: results,
		nodes: make(map[types.NodeName]*nodeWrite),
	}
}

// write asks for the node's status to be written. The pairs come back with the result.
func (f *statusWriter) write(ctx context.Context, node types.NodeName, pairs ...cache.VolumeNode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, running := f.nodes[node]
	if !running {
		w = &nodeWrite{}
		f.nodes[node] = w
		f.running.Go(func() { f.run(ctx, node, w) })
	}
	w.dirty = true
	w.pairs = append(w.pairs, pairs...)
}

// run writes until nothing more is asked for, or a write fails: then the loop decides when to try again.
func (f *statusWriter) run(ctx context.Context, node types.NodeName, w *nodeWrite) {
	for {
		f.slots <- struct{}{}
		f.mu.Lock()
		pairs := w.pairs
		w.dirty, w.pairs = false, nil
		f.mu.Unlock()
		err := f.updater.UpdateNodeStatusForNode(ctx, node)
		<-f.slots
		f.mu.Lock()
		if err != nil {
			pairs = append(pairs, w.pairs...)
			w.dirty = false
		}
		f.results.addResult(writeResult{node: node, pairs: pairs, err: err})
		if !w.dirty {
			delete(f.nodes, node)
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
	}
}

func (f *statusWriter) wait() { f.running.Wait() }
