package controller

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// EventType is the type of a change of an object.
type EventType string

// The types of events.
const (
	Created EventType = "Created"
	Updated EventType = "Updated"
	Deleted EventType = "Deleted"
)

// Event is a change that an informer reports. The objects are the informer's own and must not be modified.
type Event struct {
	Type EventType
	// Object is the object after the change, or its last known state if it was deleted.
	Object metav1.Object
	// Old is the object before an update, otherwise nil.
	Old metav1.Object
	// Initial is set if the object is part of the informer's first list.
	Initial bool
	// Resync is set for an update that changed nothing.
	Resync bool
}

// Predicate reports whether an event is relevant. An event is enqueued if all predicates of its source return true. A
// Predicate must not block.
type Predicate func(Event) bool

// GenerationChanged accepts only those updates that changed the spec or began the deletion. It suits reconcilers that do
// not read labels, annotations, finalizers or status.
func GenerationChanged() Predicate {
	return func(e Event) bool {
		return e.Type != Updated || e.Old.GetGeneration() != e.Object.GetGeneration() ||
			(e.Old.GetDeletionTimestamp() == nil) != (e.Object.GetDeletionTimestamp() == nil)
	}
}

// MetadataChanged accepts only those updates that changed labels, annotations, finalizers, owners or the
// deletion timestamp.
func MetadataChanged() Predicate {
	return func(e Event) bool {
		return e.Type != Updated ||
			!maps.Equal(e.Old.GetLabels(), e.Object.GetLabels()) ||
			!maps.Equal(e.Old.GetAnnotations(), e.Object.GetAnnotations()) ||
			!slices.Equal(e.Old.GetFinalizers(), e.Object.GetFinalizers()) ||
			!slices.EqualFunc(e.Old.GetOwnerReferences(), e.Object.GetOwnerReferences(), sameOwner) ||
			(e.Old.GetDeletionTimestamp() == nil) != (e.Object.GetDeletionTimestamp() == nil)
	}
}

func sameOwner(a, b metav1.OwnerReference) bool {
	isController := func(ref metav1.OwnerReference) bool { return ref.Controller != nil && *ref.Controller }
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion &&
		isController(a) == isController(b)
}

// Changed rejects resyncs.
func Changed() Predicate { return func(e Event) bool { return !e.Resync } }

// Matches accepts an event if the object matches the selector, or matched it before the update.
func Matches(selector labels.Selector) Predicate {
	return func(e Event) bool {
		return selector.Matches(labels.Set(e.Object.GetLabels())) ||
			(e.Old != nil && selector.Matches(labels.Set(e.Old.GetLabels())))
	}
}

// Any accepts an event if one of the predicates does.
func Any(predicates ...Predicate) Predicate {
	return func(e Event) bool {
		return slices.ContainsFunc(predicates, func(predicate Predicate) bool { return predicate(e) })
	}
}

// Not negates a predicate.
func Not(predicate Predicate) Predicate { return func(e Event) bool { return !predicate(e) } }
