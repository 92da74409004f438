package capacity

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/reconcile"
)

// reconcile brings one object up to date.
func (p *Publisher) reconcile(ctx context.Context, k key) (reconcile.Result, error) {
	have, err := p.existing(ctx, k)
	if err != nil {
		return reconcile.Result{}, err
	}
	class, err := p.classes.Get(k.class)
	gone := apierrors.IsNotFound(err) || err == nil && class.Provisioner != p.config.DriverName
	segments, found := p.topologies.segments(k.topology)
	if gone || !found {
		return reconcile.Result{}, p.remove(ctx, have)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get storage class %q: %w", k.class, err)
	}
	available, largest, err := p.deps.Driver.Capacity(ctx, class.Parameters, segments)
	if errors.Is(err, errors.ErrUnsupported) {
		return reconcile.Result{}, p.remove(ctx, have)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get capacity of class %q in topology %v: %w", k.class, segments, err)
	}
	return reconcile.Result{}, p.write(ctx, have, p.object(k, segments, available, largest))
}

// existing returns the object of this key, nil if there is none, and deletes other objects with this key.
func (p *Publisher) existing(ctx context.Context, k key) (*storagev1.CSIStorageCapacity, error) {
	found, err := p.objects.ByIndex(keyIndex, k.String())
	if err != nil {
		return nil, fmt.Errorf("list objects of %v: %w", k, err)
	}
	var have *storagev1.CSIStorageCapacity
	for _, obj := range found {
		object, ok := obj.(*storagev1.CSIStorageCapacity)
		if ok && object.Name == p.name(k) {
			have = object
		} else if err := p.remove(ctx, object); err != nil {
			return nil, err
		}
	}
	return have, nil
}

// name returns the name of the object of this key, which is the same in every process.
func (p *Publisher) name(k key) string {
	sum := fnv.New64a()
	fmt.Fprintf(sum, "%q %q %q %q", p.config.DriverName, p.config.ManagedBy, k.class, k.topology) // never fails
	return "csisc-" + strconv.FormatUint(sum.Sum64(), 36)
}

func (p *Publisher) object(k key, segments map[string]string, available int64, largest *int64) *storagev1.CSIStorageCapacity {
	object := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Name: p.name(k), Namespace: p.config.Namespace, Labels: p.labels()},
		// An empty selector matches all nodes, none at all matches none.
		NodeTopology: &metav1.LabelSelector{MatchLabels: segments}, StorageClassName: k.class,
		Capacity: resource.NewQuantity(available, resource.BinarySI),
	}
	if largest != nil {
		object.MaximumVolumeSize = resource.NewQuantity(*largest, resource.BinarySI)
	}
	if owner := p.owner(); owner != nil {
		object.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return object
}

func (p *Publisher) write(ctx context.Context, have, want *storagev1.CSIStorageCapacity) error {
	api := p.deps.Client.StorageV1().CSIStorageCapacities(p.config.Namespace)
	var err error
	switch {
	case have == nil:
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the watch brings the key back
		}
	case nearlyEqual(have.Capacity, want.Capacity) && nearlyEqual(have.MaximumVolumeSize, want.MaximumVolumeSize) &&
		sameOwners(have.OwnerReferences, want.OwnerReferences):
		return nil
	default:
		next := have.DeepCopy()
		next.Capacity, next.MaximumVolumeSize = want.Capacity, want.MaximumVolumeSize
		next.OwnerReferences = want.OwnerReferences
		_, err = api.Update(ctx, next, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // another client changed it; the watch brings the key back
		}
	}
	if err != nil {
		return fmt.Errorf("publish capacity of class %q: %w", want.StorageClassName, err)
	}
	return nil
}

// nearlyEqual returns whether two sizes differ by less than a hundredth of the second.
func nearlyEqual(have, want *resource.Quantity) bool {
	if have == nil || want == nil {
		return have == want
	}
	off := have.Value() - want.Value()
	return off == 0 || max(off, -off) < want.Value()/100
}

func sameOwners(have, want []metav1.OwnerReference) bool {
	return len(have) == len(want) && (len(want) == 0 || have[0].UID == want[0].UID)
}

func (p *Publisher) remove(ctx context.Context, object *storagev1.CSIStorageCapacity) error {
	if object == nil {
		return nil
	}
	err := p.deps.Client.StorageV1().CSIStorageCapacities(object.Namespace).Delete(ctx, object.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(object.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete CSIStorageCapacity %q: %w", object.Name, err)
	}
	return nil
}
