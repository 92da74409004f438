package csi

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision"
)

// segments are the values of topology keys.
type segments map[string]string

func (s segments) key() string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&text, "%q=%q,", key, s[key])
	}
	return text.String()
}

// includes reports whether all of the other's segments are among these.
func (s segments) includes(other segments) bool {
	for key, value := range other {
		if have, ok := s[key]; !ok || have != value {
			return false
		}
	}
	return true
}

// requirements returns the topologies in which the volume may be. With a selected node, it is only the node's: the Pod will
// run there. Without one, it is those of the class, or those in which the driver has nodes. If the node was deleted, its
// topology is unknown, and the volume of an earlier call may be there: the driver is not restricted to another one.
func (p *Provisioner) requirements(
	ctx context.Context, options provision.VolumeOptions,
) (*csiapi.TopologyRequirement, error) {
	allowed, err := expandTerms(options.AllowedTopologies)
	if err != nil {
		return nil, err
	}
	gone := isGone(options.SelectedNode)
	if options.SelectedNode != nil && !gone {
		return p.selectedTopology(ctx, options.SelectedNode, allowed)
	}
	candidates := allowed
	if len(candidates) == 0 && !gone {
		if candidates, err = p.driverTopologies(ctx); err != nil {
			return nil, err
		}
	}
	if len(candidates) == 0 {
		return nil, nil
	}
	slices.SortFunc(candidates, func(a, b segments) int { return strings.Compare(a.key(), b.key()) })
	candidates = slices.CompactFunc(candidates, func(a, b segments) bool { return a.key() == b.key() })
	// Different claims prefer different topologies, one claim always the same.
	sum := fnv.New32a()
	sum.Write([]byte(options.PVName)) // never fails
	first := int(sum.Sum32() % uint32(len(candidates)))
	preferred := append(slices.Clone(candidates[first:]), candidates[:first]...)
	return &csiapi.TopologyRequirement{Requisite: topologies(candidates), Preferred: topologies(preferred)}, nil
}

// isGone returns whether the selected node was deleted, so that only its name is known (see provision.VolumeOptions).
func isGone(node *corev1.Node) bool { return node != nil && node.UID == "" && len(node.Labels) == 0 }

func topologies(list []segments) []*csiapi.Topology {
	result := make([]*csiapi.Topology, 0, len(list))
	for _, s := range list {
		result = append(result, &csiapi.Topology{Segments: s})
	}
	return result
}

func (p *Provisioner) selectedTopology(
	ctx context.Context, node *corev1.Node, allowed []segments,
) (*csiapi.TopologyRequirement, error) {
	csiNode, err := p.client.StorageV1().CSINodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get topology keys of node %q: %w", node.Name, err)
	}
	keys, ok := topologyKeys(csiNode, p.config.Name)
	if !ok {
		return nil, fmt.Errorf("selected node %q has no driver %q", node.Name, p.config.Name)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	own, missing := nodeSegments(node, keys)
	if missing != "" {
		return nil, fmt.Errorf("selected node %q lacks the label %q of the driver's topology", node.Name, missing)
	}
	if len(allowed) > 0 && !slices.ContainsFunc(allowed, own.includes) {
		return nil, fmt.Errorf("selected node %q is in none of the class's allowedTopologies", node.Name)
	}
	only := topologies([]segments{own})
	return &csiapi.TopologyRequirement{Requisite: only, Preferred: only}, nil
}

// driverTopologies returns the topologies in which the driver has nodes.
func (p *Provisioner) driverTopologies(ctx context.Context) ([]segments, error) {
	// Read from the API server's cache: the next call sees what it lacks now.
	csiNodes, err := p.client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list topology keys of nodes: %w", err)
	}
	nodes, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	byName := map[string]*corev1.Node{}
	for i := range nodes.Items {
		byName[nodes.Items[i].Name] = &nodes.Items[i]
	}
	var found []segments
	for i := range csiNodes.Items {
		node := byName[csiNodes.Items[i].Name]
		keys, _ := topologyKeys(&csiNodes.Items[i], p.config.Name)
		if node == nil || len(keys) == 0 {
			continue
		}
		if one, missing := nodeSegments(node, keys); missing == "" {
			found = append(found, one)
		}
	}
	return found, nil
}

func topologyKeys(node *storagev1.CSINode, driver string) (keys []string, ok bool) {
	for _, d := range node.Spec.Drivers {
		if d.Name == driver {
			return d.TopologyKeys, true
		}
	}
	return nil, false
}

func nodeSegments(node *corev1.Node, keys []string) (own segments, missing string) {
	own = segments{}
	for _, key := range keys {
		value, ok := node.Labels[key]
		if !ok {
			return nil, key
		}
		own[key] = value
	}
	return own, ""
}

// maxTopologies bounds the combinations of a class's allowedTopologies.
const maxTopologies = 4096

// expandTerms returns the topologies of the class's terms: a term stands for all combinations of its values.
func expandTerms(terms []corev1.TopologySelectorTerm) ([]segments, error) {
	var found []segments
	for _, term := range terms {
		combined := []segments{{}}
		for _, expression := range term.MatchLabelExpressions {
			if len(found)+len(combined)*len(expression.Values) > maxTopologies {
				return nil, fmt.Errorf("StorageClass allowedTopologies: more than %d combinations", maxTopologies)
			}
			var next []segments
			for _, one := range combined {
				for _, value := range expression.Values {
					larger := maps.Clone(one)
					larger[expression.Key] = value
					next = append(next, larger)
				}
			}
			combined = next
		}
		for _, one := range combined {
			if len(one) > 0 {
				found = append(found, one)
			}
		}
	}
	return found, nil
}

// nodeAffinity returns the node affinity of a volume with these topologies, nil if it is accessible from everywhere.
func nodeAffinity(accessible []*csiapi.Topology) *corev1.VolumeNodeAffinity {
	var terms []corev1.NodeSelectorTerm
	for _, topology := range accessible {
		var term corev1.NodeSelectorTerm
		for _, key := range slices.Sorted(maps.Keys(topology.GetSegments())) {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{topology.GetSegments()[key]},
			})
		}
		if len(term.MatchExpressions) > 0 {
			terms = append(terms, term)
		}
	}
	if len(terms) == 0 {
		return nil
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
}
