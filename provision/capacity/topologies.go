package capacity

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
)

// key identifies one object. The topology is its segments as text, so that keys can be compared.
type key struct{ class, topology string }

// String returns the key for the log and the index.
func (k key) String() string { return k.class + " " + k.topology }

func topologyKey(segments map[string]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(segments)) {
		fmt.Fprintf(&text, "%q=%q,", name, segments[name])
	}
	return text.String()
}

// keyOf returns the key of a published object.
func keyOf(object *storagev1.CSIStorageCapacity) key {
	return key{class: object.StorageClassName, topology: topologyKey(matchLabels(object.NodeTopology))}
}

func matchLabels(selector *metav1.LabelSelector) map[string]string {
	if selector == nil {
		return nil
	}
	return selector.MatchLabels
}

// topology is one that has nodes of the driver.
type topology struct {
	segments map[string]string
	nodes    int
}

// topologies counts the nodes of each topology, by CSINodes and the Nodes' labels.
type topologies struct {
	driver string
	// node is the only node that counts; empty: all.
	node     string
	csiNodes storagelisters.CSINodeLister
	nodes    corelisters.NodeLister

	mu     sync.Mutex
	byKey  map[string]*topology
	ofNode map[string]string
}

func newTopologies(driver, node string, csiNodes storagelisters.CSINodeLister, nodes corelisters.NodeLister) *topologies {
	return &topologies{driver: driver, node: node, csiNodes: csiNodes, nodes: nodes,
		byKey: map[string]*topology{}, ofNode: map[string]string{}}
}

// refresh reads the topology of the node again and returns the topologies that appeared or disappeared with that.
func (p *topologies) refresh(node string) []string {
	// The lock is held from before the caches are read: events of Nodes and CSINodes are handled concurrently, and an older
	// read must not overwrite a newer one.
	p.mu.Lock()
	defer p.mu.Unlock()
	segments, running := p.nodeSegments(node)
	key := topologyKey(segments)
	old, was := p.ofNode[node]
	if was == running && old == key {
		return nil
	}
	var changed []string
	if was {
		delete(p.ofNode, node)
		if p.byKey[old].nodes--; p.byKey[old].nodes == 0 {
			delete(p.byKey, old)
			changed = append(changed, old)
		}
	}
	if running {
		p.ofNode[node] = key
		if p.byKey[key] == nil {
			p.byKey[key] = &topology{segments: segments}
			changed = append(changed, key)
		}
		p.byKey[key].nodes++
	}
	return changed
}

// nodeSegments returns the node's segments, and whether the driver runs on it and they are complete.
func (p *topologies) nodeSegments(name string) (map[string]string, bool) {
	if p.node != "" && name != p.node {
		return nil, false
	}
	csiNode, err := p.csiNodes.Get(name)
	if err != nil {
		return nil, false // a lister has no other error than "not found"
	}
	node, err := p.nodes.Get(name)
	if err != nil {
		return nil, false
	}
	for _, driver := range csiNode.Spec.Drivers {
		if driver.Name != p.driver {
			continue
		}
		segments := map[string]string{}
		for _, label := range driver.TopologyKeys {
			value, ok := node.Labels[label]
			if !ok {
				return nil, false
			}
			segments[label] = value
		}
		return segments, true
	}
	return nil, false
}

// segments returns those of a topology, and whether it has nodes. They must not be changed.
func (p *topologies) segments(key string) (map[string]string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.byKey[key]; known != nil {
		return known.segments, true
	}
	return nil, false
}

func (p *topologies) keys() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.byKey))
}

// ofVolume returns the topologies from which a volume can be reached: all, if its node affinity is not of the form that
// provisioners write.
func (p *topologies) ofVolume(pv *corev1.PersistentVolume) []string {
	affinity := pv.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil {
		return p.keys()
	}
	var found []string
	for _, term := range affinity.Required.NodeSelectorTerms {
		segments := map[string]string{}
		for _, e := range term.MatchExpressions {
			if e.Operator != corev1.NodeSelectorOpIn || len(e.Values) != 1 {
				return p.keys()
			}
			segments[e.Key] = e.Values[0]
		}
		key := topologyKey(segments)
		if _, known := p.segments(key); !known {
			return p.keys()
		}
		found = append(found, key)
	}
	return found
}
