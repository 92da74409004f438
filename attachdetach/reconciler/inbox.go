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
	mail
}

// mail is the content of the inbox.
type mail struct {
	pairs   map[cache.VolumeNode]struct{}
	nodes   map[types.NodeName]struct{} // the node itself changed
	reports map[types.NodeName]struct{} // its status is to be written
	flushed []flushed
}

// flushed is the result of writing one node's status: the pairs that waited for it, and the error.
type flushed struct {
	node  types.NodeName
	pairs []cache.VolumeNode
	err   error
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (i *inbox) put(f func(*mail)) {
	i.mu.Lock()
	f(&i.mail)
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) pair(pair cache.VolumeNode) {
	i.put(func(m *mail) {
		if pair.Volume == "" {
			add(&m.reports, pair.Node)
			return
		}
		add(&m.pairs, pair)
	})
}

func (i *inbox) node(node types.NodeName) { i.put(func(m *mail) { add(&m.nodes, node) }) }

func (i *inbox) result(result flushed) {
	i.put(func(m *mail) { m.flushed = append(m.flushed, result) })
}

func add[K comparable](set *map[K]struct{}, key K) {
	if *set == nil {
		*set = make(map[K]struct{})
	}
	(*set)[key] = struct{}{}
}

// take empties the inbox.
func (i *inbox) take() mail {
	i.mu.Lock()
	defer i.mu.Unlock()
	taken := i.mail
	i.mail = mail{}
	return taken
}

// flusher writes the statuses of nodes: one write a node at a time, several nodes at once. What is asked for while a
// node is being written goes into that node's next write together.
type flusher struct {
	updater statusupdater.NodeStatusUpdater
	slots   chan struct{}
	results *inbox
	running sync.WaitGroup

	mu    sync.Mutex // guards nodes
	nodes map[types.NodeName]*write
}

// write is a node whose status is being written. again asks for another write, that pairs wait for.
type write struct {
	again bool
	pairs []cache.VolumeNode
}

func newFlusher(updater statusupdater.NodeStatusUpdater, atOnce int, results *inbox) *flusher {
	return &flusher{
		updater: updater, slots: make(chan struct{}, atOnce), results: results,
		nodes: make(map[types.NodeName]*write),
	}
}

// write asks for the node's status to be written. The pairs come back with the result.
func (f *flusher) write(ctx context.Context, node types.NodeName, pairs ...cache.VolumeNode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, running := f.nodes[node]
	if !running {
		w = &write{}
		f.nodes[node] = w
		f.running.Go(func() { f.run(ctx, node, w) })
	}
	w.again = true
	w.pairs = append(w.pairs, pairs...)
}

// run writes until nothing more is asked for, or a write fails: then the loop decides when to try again.
func (f *flusher) run(ctx context.Context, node types.NodeName, w *write) {
	for {
		f.slots <- struct{}{}
		f.mu.Lock()
		pairs := w.pairs
		w.again, w.pairs = false, nil
		f.mu.Unlock()
		err := f.updater.UpdateNodeStatusForNode(ctx, node)
		<-f.slots
		f.mu.Lock()
		if err != nil {
			pairs = append(pairs, w.pairs...)
			w.again = false
		}
		f.results.result(flushed{node: node, pairs: pairs, err: err})
		if !w.again {
			delete(f.nodes, node)
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
	}
}

func (f *flusher) wait() { f.running.Wait() }
