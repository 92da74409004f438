package client

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Create creates the object in its namespace and returns it as stored.
func (r *Resource[T, L, A]) Create(ctx context.Context, obj T, options metav1.CreateOptions) (T, error) {
	created, err := r.api(obj.GetNamespace()).Create(ctx, obj, options)
	if len(options.DryRun) > 0 {
		return created, err
	}
	if err != nil && obj.GetName() == "" && IsOutcomeUnknown(err) {
		r.overlay.invalidateNamespace(obj.GetNamespace()) // whether it was created, and under which name, is unknown
		return created, err
	}
	return r.recordWrite(ctx, keyOf(obj), created, err)
}

// Update replaces the object and returns it as stored.
func (r *Resource[T, L, A]) Update(ctx context.Context, obj T, options metav1.UpdateOptions) (T, error) {
	updated, err := r.api(obj.GetNamespace()).Update(ctx, obj, options)
	if len(options.DryRun) > 0 {
		return updated, err
	}
	return r.recordWrite(ctx, keyOf(obj), updated, err)
}

// statusUpdater is implemented by the clients of kinds that have a status.
type statusUpdater[T Object] interface {
	UpdateStatus(ctx context.Context, obj T, options metav1.UpdateOptions) (T, error)
}

// UpdateStatus replaces the object's status and returns the object as stored. It is an error for kinds without one.
func (r *Resource[T, L, A]) UpdateStatus(ctx context.Context, obj T, options metav1.UpdateOptions) (T, error) {
	updater, ok := any(r.api(obj.GetNamespace())).(statusUpdater[T])
	if !ok {
		return obj, fmt.Errorf("update status of %s %q: its client has no method UpdateStatus", r.config.Resource, keyOf(obj))
	}
	updated, err := updater.UpdateStatus(ctx, obj, options)
	if len(options.DryRun) > 0 {
		return updated, err
	}
	return r.recordWrite(ctx, keyOf(obj), updated, err)
}

// Patch patches the object, or one of its subresources whose response is the object, and returns it as stored. The types of
// patches include types.ApplyPatchType, which is server-side apply.
func (r *Resource[T, L, A]) Patch(
	ctx context.Context, namespace, name string, patch Patch, options metav1.PatchOptions, subresources ...string,
) (T, error) {
	patched, err := r.api(namespace).Patch(ctx, name, patch.Type, patch.Data, options, subresources...)
	if len(options.DryRun) > 0 {
		return patched, err
	}
	return r.recordWrite(ctx, key(namespace, name), patched, err)
}

// Patch is a change to an object.
type Patch struct {
	Type types.PatchType
	Data []byte
}

// Delete deletes the object. Then it looks the key up, since the response does not show whether the object is deleted or
// waits for its finalizers or its grace period, nor at which version.
func (r *Resource[T, L, A]) Delete(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	err := r.api(namespace).Delete(ctx, name, options)
	if len(options.DryRun) > 0 {
		return err
	}
	if err == nil || IsOutcomeUnknown(err) {
		r.invalidate(ctx, key(namespace, name), err == nil)
	}
	return err
}

// DeleteCollection deletes the objects of a namespace that list selects. Then it looks the whole namespace up.
func (r *Resource[T, L, A]) DeleteCollection(
	ctx context.Context, namespace string, options metav1.DeleteOptions, list metav1.ListOptions,
) error {
	err := r.api(namespace).DeleteCollection(ctx, options, list)
	// An error may come after some of the objects were deleted.
	if len(options.DryRun) == 0 {
		r.overlay.invalidateNamespace(namespace)
	}
	return err
}

// Do calls request, which changes the object and returns it, such as the typed Apply of a client, and records its result
// like those of the other writes.
func (r *Resource[T, L, A]) Do(
	ctx context.Context, namespace, name string, request func(context.Context) (T, error),
) (T, error) {
	obj, err := request(ctx)
	return r.recordWrite(ctx, key(namespace, name), obj, err)
}

// DoWithoutResult calls request, which changes the object but does not return it, such as an eviction, a binding or a
// change of scale. The key is looked up at the next read.
func (r *Resource[T, L, A]) DoWithoutResult(
	ctx context.Context, namespace, name string, request func(context.Context) error,
) error {
	err := request(ctx)
	if err == nil || IsOutcomeUnknown(err) {
		r.overlay.invalidate(key(namespace, name))
	}
	return err
}

// recordWrite records the result of a write.
func (r *Resource[T, L, A]) recordWrite(ctx context.Context, k string, obj T, err error) (T, error) {
	switch {
	case err != nil && IsOutcomeUnknown(err):
		r.overlay.invalidate(k)
	case err != nil:
	case obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0:
		// This write may have removed what kept the object, so it may be gone.
		r.invalidate(ctx, keyOf(obj), true)
	case r.config.Filter != nil && !r.config.Filter(obj):
		r.overlay.put(keyOf(obj), state[T]{version: parseVersion(obj.GetResourceVersion())})
	default:
		r.overlay.put(keyOf(obj), state[T]{version: parseVersion(obj.GetResourceVersion()), obj: obj, exists: true})
	}
	return obj, err
}

// invalidate marks a key to be looked up and, if now is set, looks it up at once. If that lookup fails, the next read tries
// again.
func (r *Resource[T, L, A]) invalidate(ctx context.Context, k string, now bool) {
	r.overlay.invalidate(k)
	if !now {
		return
	}
	_, _, upTo := r.overlay.pendingLookups(k, "")
	_ = r.lookUp(ctx, k, upTo) // see above
}

// IsOutcomeUnknown reports whether a request with this error may have been carried out: the response was lost, or does not
// show the outcome.
func IsOutcomeUnknown(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || status.Status().Code >= 500
}
