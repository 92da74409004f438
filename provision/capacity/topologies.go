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

// key is what one object is about. A place is its segments as text, so that keys can be compared.
type key struct{ class, topology string }

// String names the key in the log and in the index.
func (k key) String() string { return k.class + " " + k.topology }

func topologyKey(segments map[string]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(segments)) {
		fmt.Fprintf(&text, "%q=%q,", name, segments[name])
	}
	return text.String()
}

// keyOf is what a published object says that it is about.
func keyOf(object *storagev1.CSIStorageCapacity) key {
	return key{class: object.StorageClassName, topology: topologyKey(matchLabels(object.NodeTopology))}
}

func matchLabels(selector *metav1.LabelSelector) map[string]string {
	if selector == nil {
		return nil
	}
	return selector.MatchLabels
}

// topology is where some nodes of the driver are.
type topology struct {
	segments map[string]string
	nodes    int
}

// topologies counts the nodes of each place, as CSINodes and the Nodes' labels tell.
type topologies struct {
	driver   string
	csiNodes storagelisters.CSINodeLister
	nodes    corelisters.NodeLister

	mu     sync.Mutex
	byKey  map[string]*topology
	ofNode map[string]string
}

func newTopologies(driver string, csiNodes storagelisters.CSINodeLister, nodes corelisters.NodeLister) *topologies {
	return &topologies{driver: driver, csiNodes: csiNodes, nodes: nodes,
		byKey: map[string]*topology{}, ofNode: map[string]string{}}
}

// refresh finds out where the node is now and returns the places that came or went with that.
func (p *topologies) refresh(node string) []string {
	// The lock is held from before the caches are read: Nodes and CSINodes come side by side, and who has looked
	// earlier must not have the last word.
	p.mu.Lock()
	defer p.mu.Unlock()
	segments, there := p.nodeSegments(node)
	text := topologyKey(segments)
	old, was := p.ofNode[node]
	if was == there && old == text {
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
	if there {
		p.ofNode[node] = text
		if p.byKey[text] == nil {
			p.byKey[text] = &topology{segments: segments}
			changed = append(changed, text)
		}
		p.byKey[text].nodes++
	}
	return changed
}

// nodeSegments returns the node's segments, and whether the driver is on it and they are complete.
func (p *topologies) nodeSegments(name string) (map[string]string, bool) {
	csiNode, err := p.csiNodes.Get(name)
	if err != nil {
		return nil, false // a lister knows no other error than "not found"
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

// segments returns those of a place, and whether it has nodes. They must not be changed.
func (p *topologies) segments(text string) (map[string]string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.byKey[text]; known != nil {
		return known.segments, true
	}
	return nil, false
}

func (p *topologies) keys() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.byKey))
}

// ofVolume returns the places from which a volume can be reached. What is not told in the way in which provisioners tell it
// is taken for everywhere.
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
		text := topologyKey(segments)
		if _, known := p.segments(text); !known {
			return p.keys()
		}
		found = append(found, text)
	}
	return found
}
