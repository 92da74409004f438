package shared

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
)

// PatchFunc patches an object of one kind, as client.Resource does.
type PatchFunc[T client.Object] func(ctx context.Context, namespace, name string, patch client.Patch, options metav1.PatchOptions,
	subresources ...string) (T, error)

// Writer patches the objects of one kind.
type Writer[T client.Object] struct {
	kind  schema.GroupVersionKind
	patch PatchFunc[T]
}

// NewWriter returns a Writer of a kind.
func NewWriter[T client.Object](kind schema.GroupVersionKind, patch PatchFunc[T]) Writer[T] {
	return Writer[T]{kind: kind, patch: patch}
}

// NameOf returns the kind and the name of an object for messages.
func (w Writer[T]) NameOf(obj T) string {
	if namespace := obj.GetNamespace(); namespace != "" {
		return fmt.Sprintf("%s %s/%s", w.kind.Kind, namespace, obj.GetName())
	}
	return fmt.Sprintf("%s %q", w.kind.Kind, obj.GetName())
}

// RefOf names an object in events and in contents.
func (w Writer[T]) RefOf(obj T) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: w.kind.GroupVersion().String(), Kind: w.kind.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName(),
		UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}
}

// Patch merges a change into an object, or into a subresource of it.
func (w Writer[T]) Patch(ctx context.Context, obj T, change map[string]any, subresources ...string) (T, error) {
	data, err := json.Marshal(change)
	if err != nil {
		var none T
		return none, err
	}
	return w.patch(ctx, obj.GetNamespace(), obj.GetName(), client.Patch{Type: types.MergePatchType, Data: data}, metav1.PatchOptions{}, subresources...)
}

// PatchStatus merges fields into the status of an object. Fields that are nil are removed.
func (w Writer[T]) PatchStatus(ctx context.Context, obj T, fields map[string]any) (T, error) {
	updated, err := w.Patch(ctx, obj, map[string]any{"metadata": map[string]any{"uid": obj.GetUID()}, "status": fields}, "status")
	if err != nil {
		err = fmt.Errorf("update the status of %s: %w", w.NameOf(obj), err)
	}
	return updated, err
}

// PatchSpec merges fields into the spec of an object, as it was read.
func (w Writer[T]) PatchSpec(ctx context.Context, obj T, fields map[string]any) (T, error) {
	updated, err := w.Patch(ctx, obj, map[string]any{
		"metadata": map[string]any{"uid": obj.GetUID(), "resourceVersion": obj.GetResourceVersion()}, "spec": fields,
	})
	if err != nil {
		err = fmt.Errorf("update the spec of %s: %w", w.NameOf(obj), err)
	}
	return updated, err
}

// Annotate sets an annotation, or removes it if value is nil.
func (w Writer[T]) Annotate(ctx context.Context, obj T, annotation string, value *string) (T, error) {
	if now, set := obj.GetAnnotations()[annotation]; set == (value != nil) && now == ptr.Deref(value, "") {
		return obj, nil
	}
	updated, err := w.Patch(ctx, obj, map[string]any{"metadata": map[string]any{
		"uid": obj.GetUID(), "annotations": map[string]any{annotation: value},
	}})
	if err != nil {
		err = fmt.Errorf("annotate %s: %w", w.NameOf(obj), err)
	}
	return updated, err
}

// Mark sets an annotation that marks a state.
func (w Writer[T]) Mark(ctx context.Context, obj T, annotation string) (T, error) {
	return w.Annotate(ctx, obj, annotation, ptr.To(snapshot.AnnYes))
}

// AddFinalizers returns the object with the finalizers.
func (w Writer[T]) AddFinalizers(ctx context.Context, obj T, add ...string) (T, error) {
	return w.setFinalizers(ctx, obj, WithFinalizers(obj.GetFinalizers(), add...))
}

// RemoveFinalizers returns the object without the finalizers. It is no error if the object is gone.
func (w Writer[T]) RemoveFinalizers(ctx context.Context, obj T, remove ...string) (T, error) {
	updated, err := w.setFinalizers(ctx, obj, WithoutFinalizers(obj.GetFinalizers(), remove...))
	if apierrors.IsNotFound(err) {
		return obj, nil
	}
	return updated, err
}

func (w Writer[T]) setFinalizers(ctx context.Context, obj T, finalizers []string) (T, error) {
	if len(finalizers) == len(obj.GetFinalizers()) {
		return obj, nil
	}
	return w.Patch(ctx, obj, FinalizersPatch(obj, finalizers))
}

// FinalizersPatch replaces the finalizers of an object as it was read.
func FinalizersPatch(obj metav1.Object, finalizers []string) map[string]any {
	return map[string]any{"metadata": map[string]any{
		"uid": obj.GetUID(), "resourceVersion": obj.GetResourceVersion(), "finalizers": finalizers,
	}}
}

// WithFinalizers returns a list of finalizers that has the given ones, WithoutFinalizers one that has none of them.
func WithFinalizers(list []string, add ...string) []string {
	list = slices.Clone(list)
	for _, finalizer := range add {
		if !slices.Contains(list, finalizer) {
			list = append(list, finalizer)
		}
	}
	return list
}

// WithoutFinalizers is documented with WithFinalizers.
func WithoutFinalizers(list []string, remove ...string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(entry string) bool { return slices.Contains(remove, entry) })
}

// ErrorField returns the field error of a status. It replaces all of an earlier error, which a merge patch would not do.
func ErrorField(failed *api.Error) any {
	if failed == nil {
		return nil
	}
	return map[string]any{"time": failed.Time, "message": failed.Message}
}

// Says reports whether the error of a status has the message.
func Says(now *api.Error, message string) bool {
	return now != nil && ptr.Deref(now.Message, "") == message
}

// WriteError writes an error, and whether the object is ready nevertheless, into the status of an object.
func (w Writer[T]) WriteError(ctx context.Context, obj T, at time.Time, message string, ready bool) error {
	_, err := w.PatchStatus(ctx, obj, map[string]any{
		"error": ErrorField(&api.Error{Time: ptr.To(metav1.NewTime(at)), Message: &message}), "readyToUse": ready,
	})
	return err
}
