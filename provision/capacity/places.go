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
type key struct{ class, place string }

// String names the key in the log and in the index.
func (k key) String() string { return k.class + " " + k.place }

func textOf(segments map[string]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(segments)) {
		fmt.Fprintf(&text, "%q=%q,", name, segments[name])
	}
	return text.String()
}

// keyOf is what a published object says that it is about.
func keyOf(object *storagev1.CSIStorageCapacity) key {
	return key{class: object.StorageClassName, place: textOf(segmentsOf(object.NodeTopology))}
}

func segmentsOf(selector *metav1.LabelSelector) map[string]string {
	if selector == nil {
		return nil
	}
	return selector.MatchLabels
}

// place is where some nodes of the driver are.
type place struct {
	segments map[string]string
	nodes    int
}

// places counts the nodes of each place, as CSINodes and the Nodes' labels tell.
type places struct {
	driver   string
	csiNodes storagelisters.CSINodeLister
	nodes    corelisters.NodeLister

	mu     sync.Mutex
	byText map[string]*place
	ofNode map[string]string
}

func newPlaces(driver string, csiNodes storagelisters.CSINodeLister, nodes corelisters.NodeLister) *places {
	return &places{driver: driver, csiNodes: csiNodes, nodes: nodes,
		byText: map[string]*place{}, ofNode: map[string]string{}}
}

// look finds out where the node is now and returns the places that came or went with that.
func (p *places) look(node string) []string {
	// The lock is held from before the caches are read: Nodes and CSINodes come side by side, and who has looked
	// earlier must not have the last word.
	p.mu.Lock()
	defer p.mu.Unlock()
	segments, there := p.find(node)
	text := textOf(segments)
	old, was := p.ofNode[node]
	if was == there && old == text {
		return nil
	}
	var changed []string
	if was {
		delete(p.ofNode, node)
		if p.byText[old].nodes--; p.byText[old].nodes == 0 {
			delete(p.byText, old)
			changed = append(changed, old)
		}
	}
	if there {
		p.ofNode[node] = text
		if p.byText[text] == nil {
			p.byText[text] = &place{segments: segments}
			changed = append(changed, text)
		}
		p.byText[text].nodes++
	}
	return changed
}

// find returns the node's segments, and whether the driver is on it and they are complete.
func (p *places) find(name string) (map[string]string, bool) {
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
func (p *places) segments(text string) (map[string]string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.byText[text]; known != nil {
		return known.segments, true
	}
	return nil, false
}

func (p *places) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.byText))
}

// of returns the places from which a volume can be reached. What is not told in the way in which provisioners tell it
// is taken for everywhere.
func (p *places) of(pv *corev1.PersistentVolume) []string {
	affinity := pv.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil {
		return p.all()
	}
	var found []string
	for _, term := range affinity.Required.NodeSelectorTerms {
		segments := map[string]string{}
		for _, e := range term.MatchExpressions {
			if e.Operator != corev1.NodeSelectorOpIn || len(e.Values) != 1 {
				return p.all()
			}
			segments[e.Key] = e.Values[0]
		}
		text := textOf(segments)
		if _, known := p.segments(text); !known {
			return p.all()
		}
		found = append(found, text)
	}
	return found
}
