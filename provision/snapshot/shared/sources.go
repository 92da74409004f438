package shared

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/reconcile"
)

// VolumeOf returns the volume of a claim that a snapshot is to be taken of. The Problem waits if an event of the claim ends it. A claim that is
// being deleted and held for a snapshot has its volume still: the snapshot may be the one that it is held for, and releases it.
func VolumeOf(ctx context.Context, kube kubernetes.Interface, claim *corev1.PersistentVolumeClaim, reason string,
) (*corev1.PersistentVolume, *Problem) {
	switch {
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, snapshot.FinalizerClaim):
		return nil, Waitf(reason, "claim %q is being deleted: no snapshot of it can be taken any more", claim.Name)
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, Waitf(reason, "claim %q is not bound to a volume yet; the snapshot is taken when it is", claim.Name)
	}
	volume, err := kube.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, Problemf(reason, "get volume %q of claim %q: %w", claim.Spec.VolumeName, claim.Name, err)
	case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID:
		return nil, Problemf(reason, "volume %q is not bound to claim %q", volume.Name, claim.Name)
	case volume.Spec.CSI == nil:
		return nil, Waitf(reason, "volume %q of claim %q is not of a CSI driver: only those have snapshots", volume.Name, claim.Name)
	}
	return volume, nil
}

// Classes are the classes of one kind, for requests whose field of the spec names the class.
type Classes[T any] struct {
	// Of is what the classes are of, in the words of messages: "snapshot".
	Kind, Field, Of string
	Get             func(ctx context.Context, name string, options metav1.GetOptions) (*T, error)
	List            func(ctx context.Context) ([]T, error)
	// IsDefault reports whether a class is the default one of a driver.
	IsDefault func(class *T, driver string) bool
	// ReasonGet and ReasonDefault are the reasons of events about a class that is missing.
	ReasonGet, ReasonDefault string
}

// Find returns the class of the name, or the one default class of the driver if the name is "". The Problem waits if an event of
// a class ends it.
func (c Classes[T]) Find(ctx context.Context, name, driver string) (*T, *Problem) {
	if name != "" {
		class, err := c.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, Waitf(c.ReasonGet, "%s %q does not exist", c.Kind, name)
		}
		if err != nil {
			return nil, Problemf(c.ReasonGet, "get %s %q: %w", c.Kind, name, err)
		}
		return class, nil
	}
	all, err := c.List(ctx)
	if err != nil {
		return nil, Problemf(c.ReasonDefault, "list classes (%s): %w", c.Kind, err)
	}
	var defaults []*T
	for i := range all {
		if c.IsDefault(&all[i], driver) {
			defaults = append(defaults, &all[i])
		}
	}
	// The words up to the colon are external-snapshotter's: people search for them.
	switch len(defaults) {
	case 1:
		return defaults[0], nil
	case 0:
		return nil, Waitf(c.ReasonDefault, "cannot find default %s class: spec.%s names none, and driver %q has no default one", c.Of, c.Field, driver)
	}
	return nil, Waitf(c.ReasonDefault, "%d default snapshot classes were found: spec.%s names none, and driver %q may have one default class",
		len(defaults), c.Field, driver)
}

// RequestedClass returns the class of a request. If the request names none, the default class of the driver is written into its spec. After a
// Problem that waits, the request is reconciled again when a class changes.
func RequestedClass[R client.Object, T any, P interface {
	*T
	metav1.Object
}](ctx context.Context, classes Classes[T], requests Writer[R], waits *Waits, request R, named, driver string) (*T, error) {
	class, wrong := classes.Find(ctx, named, driver)
	if wrong != nil {
		if wrong.Waits {
			waits.ForClass(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: request.GetNamespace(), Name: request.GetName()}})
		}
		return nil, wrong
	}
	if named != "" {
		return class, nil
	}
	_, err := requests.PatchSpec(ctx, request, map[string]any{classes.Field: P(class).GetName()})
	return class, err
}
