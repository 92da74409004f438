package replicaset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/timeline"
)

// Reasons of events and of the condition ReplicaFailure, as kube-controller-manager has them.
const (
	reasonFailedCreate     = "FailedCreate"
	reasonSuccessfulCreate = "SuccessfulCreate"
	reasonFailedDelete     = "FailedDelete"
	reasonSuccessfulDelete = "SuccessfulDelete"
)

// baseLength is how much of a ReplicaSet's name goes into its Pods' names, and suffixLength how much is added; both
// are as the API server does it for metadata.generateName.
const (
	baseLength   = 58
	suffixLength = 5
)

// manage creates or deletes Pods until there are as many as desired.
func (r *reconciliation) manage(ctx context.Context) error {
	surplus := len(r.active) + r.unseen - r.desired
	var err error
	switch {
	case surplus < 0:
		span := r.beginStage(ctx, "create pods")
		err = r.create(ctx, min(-surplus, r.config.Burst))
		span.End(err)
	case surplus > 0 && len(r.active) > 0:
		span := r.beginStage(ctx, "delete pods")
		err = r.remove(ctx, min(surplus, r.config.Burst, len(r.active)))
		span.End(err)
	}
	return err
}

// beginStage begins a stage of the ReplicaSet, which was requested when its key was added to the queue.
func (r *reconciliation) beginStage(ctx context.Context, subject string) *timeline.Span {
	requestedAt := r.deps.Clock.Now().Add(-controller.QueueWait(ctx))
	return r.deps.Timeline.BeginQueued(timeline.RefOf(kind.Kind, r.rs), Name, timeline.StageReconcile, subject, requestedAt)
}

// create creates count Pods in batches of 1, 2, 4, … and stops after the first batch with a failure, so that a quota or an
// admission rule that rejects all of them rejects one request and not count.
func (r *reconciliation) create(ctx context.Context, count int) error {
	for size := 1; count > 0; size *= 2 {
		size = min(size, count)
		if err := r.createBatch(ctx, size); err != nil {
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil // nothing can be created there any more, and nothing needs to
			}
			return err
		}
		count -= size
	}
	return nil
}

func (r *reconciliation) createBatch(ctx context.Context, size int) error {
	names, uncertain := r.podNames(size)
	var mu sync.Mutex // guards what follows, and the fields of r and r.state
	var failures []error
	parallel(r.config.Parallel, names, func(name string) {
		pod, answer, err := r.createOne(ctx, name)
		mu.Lock()
		defer mu.Unlock()
		// That this attempt was refused does not mean that an earlier one was.
		if answer == createUnknown || (answer == createRefused && slices.Contains(uncertain, name)) {
			r.state.uncertainCreates = append(r.state.uncertainCreates, name)
		}
		if err != nil {
			failures = append(failures, err)
		}
		if pod == nil {
			return
		}
		_ = r.expectations.ExpectCreationsAt(logr.Discard(), r.key, pod.ResourceVersion, pod.UID) // its error is always nil
		r.unseen++
	})
	return errors.Join(failures...)
}

// podNames returns the names of count new Pods. First come the names of uncertain creations, which are also returned on their
// own: creating such a Pod again shows whether it exists.
func (r *reconciliation) podNames(count int) (names, uncertain []string) {
	again := min(count, len(r.state.uncertainCreates))
	uncertain = slices.Clone(r.state.uncertainCreates[:again])
	r.state.uncertainCreates = slices.Clone(r.state.uncertainCreates[again:])
	names = slices.Clone(uncertain)
	base := r.prefix()[:min(len(r.prefix()), baseLength)]
	for len(names) < count {
		names = append(names, base+rand.String(suffixLength))
	}
	return names, uncertain
}

func (r *reconciliation) prefix() string { return r.rs.Name + "-" }

// createResult is what an attempt to create a Pod has shown.
type createResult int

const (
	createKnown   createResult = iota // whether the Pod exists is known
	createRefused                     // this attempt did not create it
	createUnknown                     // this attempt may have created it
)

// createOne creates a Pod from the template and returns it, or the one that an earlier attempt created.
func (r *reconciliation) createOne(ctx context.Context, name string) (*corev1.Pod, createResult, error) {
	pod, err := r.deps.Client.CoreV1().Pods(r.rs.Namespace).Create(ctx, r.podFor(name), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return r.adoptExisting(ctx, name)
	}
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			r.event(corev1.EventTypeWarning, reasonFailedCreate, "Error creating: %v", err)
		}
		answer := createRefused
		if client.IsOutcomeUnknown(err) {
			answer = createUnknown
		}
		return nil, answer, fmt.Errorf("create pod %s/%s: %w", r.rs.Namespace, name, err)
	}
	r.recordCreated(pod)
	return pod, createKnown, nil
}

func (r *reconciliation) recordCreated(pod *corev1.Pod) {
	r.event(corev1.EventTypeNormal, reasonSuccessfulCreate, "Created pod: %v", pod.Name)
	r.deps.Timeline.Mark(timeline.PodRef(pod), Name, timeline.StageAccepted, "", nil).SetCause(timeline.RefOf(kind.Kind, r.rs))
}

// adoptExisting reads the Pod that has the name already. If the ReplicaSet controls it, it is the result of an earlier
// attempt. Otherwise the name is in use, and the retry takes another.
func (r *reconciliation) adoptExisting(ctx context.Context, name string) (*corev1.Pod, createResult, error) {
	pod, err := r.readPod(ctx, name)
	if err != nil {
		return nil, createUnknown, fmt.Errorf("create pod %s/%s: it exists, read it: %w", r.rs.Namespace, name, err)
	}
	if pod == nil || pod.DeletionTimestamp != nil || !metav1.IsControlledBy(pod, r.rs) {
		return nil, createKnown, fmt.Errorf("create pod %s/%s: the name is in use; retrying with another", r.rs.Namespace, name)
	}
	r.recordCreated(pod)
	return pod, createKnown, nil
}

// readPod reads a Pod from the API, nil if it does not exist. It lists, because the role of this controller may list but not
// get Pods.
func (r *reconciliation) readPod(ctx context.Context, name string) (*corev1.Pod, error) {
	list, err := r.deps.Client.CoreV1().Pods(r.rs.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: metav1.ObjectNameField + "=" + name,
	})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// podFor returns the Pod of that name, built from the template.
func (r *reconciliation) podFor(name string) *corev1.Pod {
	template := r.rs.Spec.Template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, GenerateName: r.prefix(), Namespace: r.rs.Namespace,
			Labels: template.Labels, Annotations: template.Annotations, Finalizers: template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.rs, kind)},
		},
		Spec: template.Spec,
	}
}

// remove deletes count of the active Pods, in the order of choosePodsToDelete.
func (r *reconciliation) remove(ctx context.Context, count int) error {
	related, err := r.relatedPods()
	if err != nil {
		return err
	}
	toDelete, rest := choosePodsToDelete(r.active, related, count, r.deps.Clock.Now())
	uids := make([]types.UID, len(toDelete))
	for i, pod := range toDelete {
		uids[i] = pod.UID
	}
	// The expectation comes before the deletion, so that no event can come before the expectation.
	_ = r.expectations.ExpectDeletions(logr.Discard(), r.key, uids...) // its error is always nil
	var mu sync.Mutex                                                  // guards what follows, and the fields of r.state
	var failures []error
	parallel(r.config.Parallel, toDelete, func(pod *corev1.Pod) {
		err := r.deleteOne(ctx, pod)
		if err == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		failures = append(failures, err)
		if client.IsOutcomeUnknown(err) {
			r.state.addPendingDelete(pod.UID, pod.Name)
			return
		}
		r.expectations.ObserveDeletions(logr.Discard(), r.key, pod.UID)
		rest = append(rest, pod)
	})
	r.active = rest
	return errors.Join(failures...)
}

// deleteOne deletes the Pod, but no other one of that name. It succeeds if the Pod does not exist any more.
func (r *reconciliation) deleteOne(ctx context.Context, pod *corev1.Pod) error {
	options := *metav1.NewPreconditionDeleteOptions(string(pod.UID))
	err := r.deps.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		r.event(corev1.EventTypeWarning, reasonFailedDelete, "Error deleting: %v", err)
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.event(corev1.EventTypeNormal, reasonSuccessfulDelete, "Deleted pod: %v", pod.Name)
	return nil
}

// resolvePendingDeletes finds out what became of deletions whose answer was lost. Until that is known nothing is decided.
func (r *reconciliation) resolvePendingDeletes(ctx context.Context) error {
	for uid, name := range r.state.pendingDeletes {
		pod, err := r.readPod(ctx, name)
		if err != nil {
			return fmt.Errorf("find out whether pod %s/%s was deleted: %w", r.rs.Namespace, name, err)
		}
		if pod != nil && pod.UID == uid && pod.DeletionTimestamp == nil {
			r.expectations.ObserveDeletions(logr.Discard(), r.key, uid) // it was not
		}
		delete(r.state.pendingDeletes, uid)
	}
	return nil
}

func (o *setState) addPendingDelete(uid types.UID, name string) {
	if o.pendingDeletes == nil {
		o.pendingDeletes = make(map[types.UID]string)
	}
	o.pendingDeletes[uid] = name
}

func (r *reconciliation) event(eventType, reason, format string, args ...any) {
	r.recorder.Eventf(r.rs, eventType, reason, format, args...)
}

// parallel calls do for each of the items, at most limit at the same time, and waits for all.
func parallel[T any](limit int, items []T, do func(T)) {
	if len(items) == 1 {
		do(items[0])
		return
	}
	next := make(chan T)
	var group sync.WaitGroup
	for range min(limit, len(items)) {
		group.Go(contain.Guard("replicaset.parallel", "", func() {
			for item := range next {
				do(item)
			}
		}))
	}
	for _, item := range items {
		next <- item
	}
	close(next)
	group.Wait()
}
