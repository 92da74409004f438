package page

import (
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/timeline"
)

// relative is an object that another one depends on or serves.
type relative struct{ Label, Link string }

func newRelative(kind, namespace, name string) relative {
	return relative{Label: label(timeline.Ref{Kind: kind, Namespace: namespace, Name: name}), Link: link(kind, namespace, name)}
}

// maxRelatives bounds the Pods of a Service or a Node that are listed.
const maxRelatives = 60

// relations returns the chains in which the object stands, as from a Pod over its claims and volumes to its node, or its Pods.
func (h *hub) relations(ctx context.Context, ref timeline.Ref) [][]relative {
	switch ref.Kind {
	case explain.KindPod:
		pod, err := h.source.Client.CoreV1().Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil // it has gone meanwhile
		}
		return h.relationsOfPod(ctx, pod)
	case explain.KindClaim:
		var chains [][]relative
		h.eachPod(ref.Namespace, func(pod *corev1.Pod) {
			if slices.Contains(claimNames(pod), ref.Name) {
				chains = append(chains, append([]relative{newRelative(explain.KindPod, pod.Namespace, pod.Name)}, h.claimChain(ctx, ref.Namespace, ref.Name)...))
			}
		})
		if len(chains) == 0 {
			chains = append(chains, h.claimChain(ctx, ref.Namespace, ref.Name))
		}
		return chains
	case explain.KindVolume:
		volume, err := h.source.Client.CoreV1().PersistentVolumes().Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil || volume.Spec.ClaimRef == nil {
			return nil
		}
		return [][]relative{h.claimChain(ctx, volume.Spec.ClaimRef.Namespace, volume.Spec.ClaimRef.Name)}
	}
	return h.podsOf(ctx, ref)
}

// relationsOfPod returns the Pod's owner and node, and each of its claims.
func (h *hub) relationsOfPod(ctx context.Context, pod *corev1.Pod) [][]relative {
	var chain []relative
	if owner := metav1.GetControllerOf(pod); owner != nil {
		if set, err := h.source.Client.AppsV1().ReplicaSets(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{}); owner.Kind == explain.KindReplicaSet && err == nil {
			if above := metav1.GetControllerOf(set); above != nil {
				chain = append(chain, newRelative(above.Kind, pod.Namespace, above.Name))
			}
		}
		chain = append(chain, newRelative(owner.Kind, pod.Namespace, owner.Name))
	}
	self := newRelative(explain.KindPod, pod.Namespace, pod.Name)
	chain = append(chain, self)
	if pod.Spec.NodeName != "" {
		chain = append(chain, newRelative(explain.KindNode, "", pod.Spec.NodeName))
	}
	var chains [][]relative
	if len(chain) > 1 {
		chains = append(chains, chain)
	}
	for _, name := range claimNames(pod) {
		chains = append(chains, append([]relative{self}, h.claimChain(ctx, pod.Namespace, name)...))
	}
	return chains
}

// claimChain returns the claim and its volume.
func (h *hub) claimChain(ctx context.Context, namespace, name string) []relative {
	chain := []relative{newRelative(explain.KindClaim, namespace, name)}
	claim, err := h.source.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil && claim.Spec.VolumeName != "" {
		chain = append(chain, newRelative(explain.KindVolume, "", claim.Spec.VolumeName))
	}
	return chain
}

// podsOf returns a chain to each Pod of a Service, a Node or an owner.
func (h *hub) podsOf(ctx context.Context, ref timeline.Ref) [][]relative {
	self := newRelative(ref.Kind, ref.Namespace, ref.Name)
	matches := func(*corev1.Pod) bool { return false }
	switch ref.Kind {
	case explain.KindNode:
		matches = func(pod *corev1.Pod) bool { return pod.Spec.NodeName == ref.Name }
	case explain.KindService:
		service, err := h.source.Client.CoreV1().Services(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil || len(service.Spec.Selector) == 0 {
			return nil
		}
		selector := labels.SelectorFromSet(service.Spec.Selector)
		matches = func(pod *corev1.Pod) bool { return selector.Matches(labels.Set(pod.Labels)) }
	case explain.KindDeployment:
		sets := h.setsOf(ref)
		matches = func(pod *corev1.Pod) bool {
			owner := metav1.GetControllerOf(pod)
			return owner != nil && sets[owner.UID]
		}
	case explain.KindReplicaSet:
		matches = func(pod *corev1.Pod) bool {
			owner := metav1.GetControllerOf(pod)
			return owner != nil && owner.UID == ref.UID
		}
	}
	var chains [][]relative
	h.eachPod(ref.Namespace, func(pod *corev1.Pod) {
		if matches(pod) {
			chains = append(chains, []relative{self, newRelative(explain.KindPod, pod.Namespace, pod.Name)})
		}
	})
	slices.SortFunc(chains, func(a, b []relative) int { return strings.Compare(a[1].Link, b[1].Link) })
	return chains[:min(len(chains), maxRelatives)]
}

// setsOf returns the UIDs of a Deployment's ReplicaSets.
func (h *hub) setsOf(ref timeline.Ref) map[types.UID]bool {
	sets := make(map[types.UID]bool)
	for _, found := range listAll(h.informers.of[replicaSets].GetIndexer(), ref.Namespace) {
		set := found.(*appsv1.ReplicaSet)
		if owner := metav1.GetControllerOf(set); owner != nil && owner.UID == ref.UID {
			sets[set.UID] = true
		}
	}
	return sets
}

// maxFound bounds the results of a search.
const maxFound = 100

// find returns the objects whose namespace and name contain the text, those first whose name begins with it.
func (h *hub) find(text string) []relative {
	type hit struct {
		relative
		begins bool
	}
	var hits []hit
	text = strings.ToLower(strings.TrimSpace(text))
	kinds := []struct{ resource, kind string }{
		{pods, explain.KindPod}, {claims, explain.KindClaim}, {services, explain.KindService}, {deployments, explain.KindDeployment},
		{replicaSets, explain.KindReplicaSet}, {volumes, explain.KindVolume}, {nodes, explain.KindNode},
	}
	for _, k := range kinds {
		for _, found := range h.informers.of[k.resource].GetIndexer().List() {
			object := found.(metav1.Object)
			relative := newRelative(k.kind, object.GetNamespace(), object.GetName())
			if text != "" && strings.Contains(relative.Label, text) {
				hits = append(hits, hit{relative, strings.HasPrefix(object.GetName(), text)})
			}
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int {
		if a.begins != b.begins {
			if a.begins {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Label, b.Label)
	})
	var result []relative
	for _, hit := range hits[:min(len(hits), maxFound)] {
		result = append(result, hit.relative)
	}
	return result
}
