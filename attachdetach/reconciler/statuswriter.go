package reconciler

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/statusupdater"
	"github.com/berth-dev/berth/internal/contain"
)

// statusWriter writes the statuses of nodes: one write of a node at a time, several nodes at once. All requests that come
// while a node is being written share that node's next write.
type statusWriter struct {
	updater statusupdater.NodeStatusUpdater
	slots   chan struct{}
	results *inbox
	running sync.WaitGroup

	mu    sync.Mutex // guards nodes
	nodes map[types.NodeName]*nodeWrite
}

// nodeWrite is a node whose status is being written. dirty requests another write, which pairs wait for.
type nodeWrite struct {
	dirty bool
	pairs []cache.VolumeNode
}

func newStatusWriter(updater statusupdater.NodeStatusUpdater, concurrency int, results *inbox) *statusWriter {
	return &statusWriter{
		updater: updater, slots: make(chan struct{}, concurrency), results: results,
		nodes: make(map[types.NodeName]*nodeWrite),
	}
}

// write requests a write of the node's status. The result that goes to the inbox contains the pairs.
func (s *statusWriter) write(ctx context.Context, node types.NodeName, pairs ...cache.VolumeNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, running := s.nodes[node]
	if !running {
		w = &nodeWrite{}
		s.nodes[node] = w
		// Without its goroutine a node that has a nodeWrite would never be written again. The end of ctx is a result as others.
		lasting := context.WithoutCancel(ctx)
		s.running.Go(contain.Loop(lasting, "attachdetach.writeNode", string(node), func(context.Context) { s.run(ctx, node, w) }))
	}
	w.dirty = true
	w.pairs = append(w.pairs, pairs...)
}

// run writes until nothing more is requested or a write fails: then the loop decides when to retry.
func (s *statusWriter) run(ctx context.Context, node types.NodeName, w *nodeWrite) {
	for {
		s.slots <- struct{}{}
		s.mu.Lock()
		pairs := w.pairs
		w.dirty, w.pairs = false, nil
		s.mu.Unlock()
		err := contain.Do("attachdetach.writeNode", string(node), func() error {
			return s.updater.UpdateNodeStatusForNode(ctx, node)
		})
		<-s.slots
		if s.end(node, w, pairs, err) {
			return
		}
	}
}

// end reports the result of a write, and whether it was the last one of the node that is requested.
func (s *statusWriter) end(node types.NodeName, w *nodeWrite, pairs []cache.VolumeNode, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		pairs = append(pairs, w.pairs...)
		w.dirty = false
	}
	s.results.addResult(writeResult{node: node, pairs: pairs, err: err})
	if !w.dirty {
		delete(s.nodes, node)
	}
	return !w.dirty
}

func (s *statusWriter) wait() { s.running.Wait() }
