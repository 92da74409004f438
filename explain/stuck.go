package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
)

// maxConcurrentExplanations bounds how many objects are explained at the same time.
const maxConcurrentExplanations = 8

// Candidate is an object that may not be ready.
type Candidate struct {
	Kind, Namespace, Name string
	UID                   types.UID
}

// Stuck explains every object of the namespace (all, if empty) that is not ready, the worst first: failed before waiting
// before terminating, and then the oldest first. The selector is a label selector in kubectl's syntax; with a namespace
// or a selector, cluster-scoped objects are omitted. The second result names the kinds that could not be listed; if none
// could be, there is an error.
func Stuck(ctx context.Context, src Source, namespace, selector string) ([]*Explanation, []string, error) {
	found, unseen, err := Candidates(ctx, src, namespace, selector)
	if err != nil {
		return nil, nil, err
	}
	explanations := make([]*Explanation, len(found))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentExplanations)
	for i, c := range found {
		group.Go(contain.Func("explain.Stuck", "", func() error {
			explanation, err := Explain(ctx, src, c.Kind, c.Namespace, c.Name)
			if apierrors.IsNotFound(err) {
				return nil // it has gone meanwhile
			}
			explanations[i] = explanation
			return err
		}))
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	explanations = slices.DeleteFunc(explanations, func(a *Explanation) bool { return a == nil || !a.Stuck() })
	slices.SortStableFunc(explanations, compare)
	return explanations, unseen, nil
}

// Stuck reports whether the object is neither ready nor succeeded.
func (a *Explanation) Stuck() bool { return a.State != Ready && a.State != Succeeded }

// compare orders the worse first.
func compare(a, b *Explanation) int {
	rank := map[State]int{Failed: 0, Waiting: 1, Terminating: 2, Ready: 3, Succeeded: 4}
	return cmp.Or(cmp.Compare(rank[a.State], rank[b.State]), a.Since.Compare(b.Since),
		cmp.Compare(a.Object.Namespace, b.Object.Namespace), cmp.Compare(a.Object.Name, b.Object.Name))
}

// Candidates lists the objects that Stuck explains: those that may not be ready, judged by what a list shows, and all nodes.
// The second result names the kinds that could not be listed; if none could be, there is an error.
func Candidates(ctx context.Context, src Source, namespace, selector string) (found []Candidate, unseen []string, err error) {
	options := metav1.ListOptions{LabelSelector: selector}
	var errs []error
	take := func(what string, err error, add func()) {
		if err != nil {
			errs = append(errs, fmt.Errorf("list %s: %w", what, err))
			unseen = append(unseen, fmt.Sprintf("%s: %v", what, err))
			return
		}
		add()
	}
	asked := 5
	pods, err := src.Client.CoreV1().Pods(namespace).List(ctx, options)
	take("pods", err, func() {
		for i := range pods.Items {
			if pod := &pods.Items[i]; !podutil.IsReady(&pod.Status) && pod.Status.Phase != corev1.PodSucceeded || pod.DeletionTimestamp != nil {
				found = append(found, Candidate{KindPod, pod.Namespace, pod.Name, pod.UID})
			}
		}
	})
	claims, err := src.Client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, options)
	take("persistentvolumeclaims", err, func() {
		for i := range claims.Items {
			if claim := &claims.Items[i]; claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil || wantsExpansion(claim) || wantsModification(claim) {
				found = append(found, Candidate{KindClaim, claim.Namespace, claim.Name, claim.UID})
			}
		}
	})
	sets, err := src.Client.AppsV1().ReplicaSets(namespace).List(ctx, options)
	take("replicasets", err, func() {
		for i := range sets.Items {
			if set := &sets.Items[i]; metav1.GetControllerOf(set) == nil && isOutOfSync(set) {
				found = append(found, Candidate{KindReplicaSet, set.Namespace, set.Name, set.UID})
			}
		}
	})
	deployments, err := src.Client.AppsV1().Deployments(namespace).List(ctx, options)
	take("deployments", err, func() {
		for i := range deployments.Items {
			if d := &deployments.Items[i]; deploymentState(d, src.now()).state != Ready {
				found = append(found, Candidate{KindDeployment, d.Namespace, d.Name, d.UID})
			}
		}
	})
	services, err := stuckServices(ctx, src, namespace, options)
	take("services", err, func() { found = append(found, services...) })
	if namespace == metav1.NamespaceAll && selector == "" {
		asked += 2
		nodes, err := src.Client.CoreV1().Nodes().List(ctx, options)
		take("nodes", err, func() {
			for i := range nodes.Items {
				found = append(found, Candidate{KindNode, "", nodes.Items[i].Name, nodes.Items[i].UID})
			}
		})
		volumes, err := src.Client.CoreV1().PersistentVolumes().List(ctx, options)
		take("persistentvolumes", err, func() {
			for i := range volumes.Items {
				pv := &volumes.Items[i]
				if pv.DeletionTimestamp != nil || pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed {
					found = append(found, Candidate{KindVolume, "", pv.Name, pv.UID})
				}
			}
		})
	}
	if len(errs) == asked {
		return nil, nil, errors.Join(errs...)
	}
	return found, unseen, nil
}

// stuckServices lists the Services that lead nowhere or wait for an address.
func stuckServices(ctx context.Context, src Source, namespace string, options metav1.ListOptions) ([]Candidate, error) {
	services, err := src.Client.CoreV1().Services(namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	endpointSlices, err := src.Client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	of := make(map[types.NamespacedName][]discoveryv1.EndpointSlice)
	for _, slice := range endpointSlices.Items {
		key := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
		of[key] = append(of[key], slice)
	}
	var found []Candidate
	for i := range services.Items {
		service := &services.Items[i]
		f := &serviceFacts{service: service, slices: of[types.NamespacedName{Namespace: service.Namespace, Name: service.Name}]}
		if f.mayBeStuck() {
			found = append(found, Candidate{KindService, service.Namespace, service.Name, service.UID})
		}
	}
	return found, nil
}

func isOutOfSync(set *appsv1.ReplicaSet) bool {
	want := int32(1)
	if set.Spec.Replicas != nil {
		want = *set.Spec.Replicas
	}
	return set.DeletionTimestamp != nil || set.Status.ReadyReplicas != want || set.Status.Replicas != want
}
