package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/provision"
)

// segments are the values of topology keys.
type segments map[string]string

// includes reports whether all of the other's segments are among these.
func (s segments) includes(other segments) bool {
	for key, value := range other {
		if have, ok := s[key]; !ok || have != value {
			return false
		}
	}
	return true
}

// compare orders segments by their number, and then by their keys and values, as external-provisioner orders them: both prefer
// the same topology for a claim.
func (s segments) compare(other segments) int {
	if len(s) != len(other) {
		return len(s) - len(other)
	}
	mine, others := slices.Sorted(maps.Keys(s)), slices.Sorted(maps.Keys(other))
	for i, key := range mine {
		if c := cmp.Or(strings.Compare(key, others[i]), strings.Compare(s[key], other[others[i]])); c != 0 {
			return c
		}
	}
	return 0
}

// requirements returns the topologies in which the volume may be, in the order of preference.
//
// With a selected node, the volume has to be reachable from there: its topology comes first, or with StrictTopology is the only one.
// The others are for volumes that span several. Without a node, claims are spread over all. If the node was deleted, its
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
		return p.requirementsOfNode(ctx, options, allowed)
	}
	candidates := allowed
	if len(options.AllowedTopologies) == 0 && !gone {
		if candidates, err = p.driverTopologies(ctx, options.PVC.UID); err != nil {
			return nil, err
		}
	}
	candidates = distinct(candidates)
	if len(candidates) == 0 {
		return nil, nil
	}
	return requirement(candidates, spread(options.PVC.Name, len(candidates))), nil
}

// distinct returns the topologies in order, each once.
func distinct(list []segments) []segments {
	slices.SortFunc(list, segments.compare)
	return slices.CompactFunc(list, func(a, b segments) bool { return a.compare(b) == 0 })
}

// requirement returns the topologies, of which the one with that index is preferred, and then those that follow it.
func requirement(list []segments, first int) *csiapi.TopologyRequirement {
	preferred := append(slices.Clone(list[first:]), list[:first]...)
	return &csiapi.TopologyRequirement{Requisite: topologies(list), Preferred: topologies(preferred)}
}

// spread returns which of so many topologies a claim prefers, always the same for a claim. The claims of a StatefulSet, which
// are named CLAIM-SET-ORDINAL, go round the topologies by their ordinals, beginning with one that only the set decides: all claims of
// one Pod prefer the same topology, without which no node could run the Pod.
func spread(claim string, topologies int) int {
	var ordinal uint32
	hashed := claim
	if dash := strings.LastIndexByte(claim, '-'); dash >= 0 {
		if number, err := strconv.ParseUint(claim[dash+1:], 10, 32); err == nil {
			ordinal = uint32(number)
			hashed = claim[:dash]
			hashed = hashed[strings.LastIndexByte(hashed, '-')+1:]
		}
	}
	sum := fnv.New32()
	sum.Write([]byte(hashed)) // never fails
	return int((sum.Sum32() + ordinal) % uint32(topologies))
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

// requirementsOfNode returns the topologies of a volume for the selected node.
func (p *Provisioner) requirementsOfNode(
	ctx context.Context, options provision.VolumeOptions, allowed []segments,
) (*csiapi.TopologyRequirement, error) {
	node := options.SelectedNode
	own, err := p.selectedTopology(ctx, node)
	if err != nil {
		return nil, err
	}
	if len(options.AllowedTopologies) > 0 && len(allowed) > 0 && !slices.ContainsFunc(allowed, own.includes) {
		return nil, fmt.Errorf("selected node %q is in none of the class's allowedTopologies", node.Name)
	}
	candidates := allowed
	switch {
	case p.config.StrictTopology || p.config.NodeName != "":
		candidates = []segments{own}
	case len(options.AllowedTopologies) > 0:
	default:
		list, err := p.listNodes(ctx)
		if err != nil && !errors.Is(err, errNoNode) { // the list may be older than what was read of the selected node
			return nil, err
		}
		candidates = append(list.topologies(slices.Collect(maps.Keys(own))), own)
	}
	if candidates = distinct(candidates); len(candidates) == 0 {
		return nil, nil
	}
	return requirement(candidates, slices.IndexFunc(candidates, own.includes)), nil
}

// selectedTopology returns the topology of the selected node.
func (p *Provisioner) selectedTopology(ctx context.Context, node *corev1.Node) (segments, error) {
	csiNode, err := p.client.StorageV1().CSINodes().Get(ctx, node.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %w", errNoCSINode, err)
	}
	if err != nil {
		return nil, fmt.Errorf("get topology keys of node %q: %w", node.Name, err)
	}
	keys, ok := topologyKeys(csiNode, p.config.Name)
	switch {
	case !ok:
		return nil, fmt.Errorf("selected node %q has no driver %q", node.Name, p.config.Name)
	case len(keys) == 0:
		return nil, fmt.Errorf("driver %q on the selected node %q reports no topology", p.config.Name, node.Name)
	}
	own, missing := labelSegments(node.Labels, keys)
	if missing != "" {
		return nil, fmt.Errorf("selected node %q lacks the label %q of the driver's topology", node.Name, missing)
	}
	return own, nil
}

// driverTopologies returns the topologies in which the driver has nodes. Where it reports other keys on some nodes than on others,
// the topologies of all keys are among them. Without a node the claim waits for the first one.
func (p *Provisioner) driverTopologies(ctx context.Context, claim types.UID) ([]segments, error) {
	list, err := p.listNodes(ctx)
	if errors.Is(err, errNoNode) {
		p.waits.wait(claim, sourceKey{kind: nodeKind})
	}
	if err != nil {
		return nil, err
	}
	var found []segments
	seen := map[string]bool{}
	for _, node := range list {
		keys := slices.Sorted(slices.Values(node.keys))
		if id := strings.Join(keys, ","); len(keys) > 0 && !seen[id] {
			seen[id] = true
			found = append(found, list.topologies(keys)...)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no node of driver %q has the labels of its topology", p.config.Name)
	}
	return found, nil
}

// driverNode is a node of the driver: its labels, and the keys of the topology that the driver reports there.
type driverNode struct {
	labels map[string]string
	keys   []string
}

type driverNodes []driverNode

// topologies returns those of the nodes on which the driver reports all the keys: others may have the labels by chance.
func (d driverNodes) topologies(keys []string) []segments {
	var found []segments
	for _, node := range d {
		if slices.ContainsFunc(keys, func(key string) bool { return !slices.Contains(node.keys, key) }) {
			continue
		}
		if one, missing := labelSegments(node.labels, keys); missing == "" {
			found = append(found, one)
		}
	}
	return found
}

// errNoCSINode is the error for a selected node without a CSINode, which may never get one: another node has to be selected.
var errNoCSINode = errors.New("the selected node has no CSINode")

// errNoNode is the error for a driver that runs on no node.
var errNoNode = errors.New("the driver has no node yet")

// listNodes returns the nodes of the driver. The error is errNoNode if no CSINode has the driver with its topology.
func (p *Provisioner) listNodes(ctx context.Context) (driverNodes, error) {
	// Read from the API server's cache: the next call sees what it lacks now.
	csiNodes, err := p.client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list topology keys of nodes: %w", err)
	}
	nodes, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	labels := map[string]map[string]string{}
	for i := range nodes.Items {
		labels[nodes.Items[i].Name] = nodes.Items[i].Labels
	}
	var found driverNodes
	registered := false
	for i := range csiNodes.Items {
		keys, _ := topologyKeys(&csiNodes.Items[i], p.config.Name)
		registered = registered || len(keys) > 0
		if of, exists := labels[csiNodes.Items[i].Name]; exists && len(keys) > 0 {
			found = append(found, driverNode{labels: of, keys: keys})
		}
	}
	if !registered {
		return nil, fmt.Errorf("driver %q: %w", p.config.Name, errNoNode)
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

func labelSegments(labels map[string]string, keys []string) (own segments, missing string) {
	own = segments{}
	for _, key := range keys {
		value, ok := labels[key]
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
