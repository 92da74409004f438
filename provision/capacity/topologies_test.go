package capacity

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
)

// A node's two objects come by two watches, each of which looks when it has brought its own: whoever is slow, the place
// is known once both have looked.
func TestConcurrentRefreshes(t *testing.T) {
	const driver, label, rounds = "disk.example.com", "node", 5000
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	csiNodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	p := newTopologies(driver, "", storagelisters.NewCSINodeLister(csiNodes), corelisters.NewNodeLister(nodes))
	for i := range rounds {
		name := fmt.Sprint("node-", i)
		meta := metav1.ObjectMeta{Name: name, Labels: map[string]string{label: name}}
		csiNode := &storagev1.CSINode{ObjectMeta: meta, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name, TopologyKeys: []string{label}}}}}
		var watches sync.WaitGroup
		var errs [2]error
		watches.Go(func() { errs[0] = nodes.Add(&corev1.Node{ObjectMeta: meta}); p.refresh(name) })
		watches.Go(func() { errs[1] = csiNodes.Add(csiNode); p.refresh(name) })
		watches.Wait()
		require.Equal(t, [2]error{}, errs)
		segments := map[string]string{label: name}
		_, known := p.segments(topologyKey(segments))
		require.True(t, known, "round %d", i)
	}
}
