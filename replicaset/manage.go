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

	"github.com/berth-dev/berth/controller"
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

// manage creates or deletes Pods until there are as many as asked for.
func (r *run) manage(ctx context.Context) error {
	surplus := len(r.active) + r.unseen - r.want
	var err error
	switch {
	case surplus < 0:
		span := r.begin(ctx, "create pods")
		err = r.create(ctx, min(-surplus, r.config.Burst))
		span.End(err)
	case surplus > 0 && len(r.active) > 0:
		span := r.begin(ctx, "delete pods")
		err = r.remove(ctx, min(surplus, r.config.Burst, len(r.active)))
		span.End(err)
	}
	return err
}

// begin begins a stage of the ReplicaSet, which was asked for when its key was put into the queue.
func (r *run) begin(ctx context.Context, subject string) *timeline.Span {
	asked := r.deps.Clock.Now().Add(-controller.QueueWait(ctx))
	return r.deps.Timeline.BeginQueued(timeline.RefOf(kind.Kind, r.rs), Name, timeline.StageReconcile, subject, asked)
}

// create makes count Pods in batches of 1, 2, 4, … and stops after the first batch with a failure, so that a quota
// or an admission rule that refuses all of them is asked once and not count times.
func (r *run) create(ctx context.Context, count int) error {
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

func (r *run) createBatch(ctx context.Context, size int) error {
	names, doubted := r.names(size)
	var mu sync.Mutex // guards what follows, and the run's and the owner's fields
	var failures []error
	parallel(r.config.Parallel, names, func(name string) {
		pod, answer, err := r.createOne(ctx, name)
		mu.Lock()
		defer mu.Unlock()
		// A refusal of this attempt says nothing about an earlier one.
		if answer == lost || (answer == refused && slices.Contains(doubted, name)) {
			r.owner.names = append(r.owner.names, name)
		}
		if err != nil {
			failures = append(failures, err)
		}
		if pod == nil {
			return
		}
		_ = r.expected.ExpectCreationsAt(logr.Discard(), r.key, pod.ResourceVersion, pod.UID) // its error is always nil
		r.unseen++
	})
	return errors.Join(failures...)
}

// names gives the names for so many new Pods. Names in doubt come first, and are returned once more on their own:
// creating one of those again tells whether it was created before.
func (r *run) names(count int) (names, doubted []string) {
	again := min(count, len(r.owner.names))
	doubted = slices.Clone(r.owner.names[:again])
	r.owner.names = slices.Clone(r.owner.names[again:])
	names = slices.Clone(doubted)
	base := r.prefix()[:min(len(r.prefix()), baseLength)]
	for len(names) < count {
		names = append(names, base+rand.String(suffixLength))
	}
	return names, doubted
}

func (r *run) prefix() string { return r.rs.Name + "-" }

// answer is what is known after an attempt to create a Pod.
type answer int

const (
	settled answer = iota // whether there is such a Pod is known
	refused               // this attempt did not create it
	lost                  // this attempt may have created it
)

// createOne creates a Pod from the template and returns it, or the one that an earlier attempt created.
func (r *run) createOne(ctx context.Context, name string) (*corev1.Pod, answer, error) {
	pod, err := r.deps.Client.CoreV1().Pods(r.rs.Namespace).Create(ctx, r.podFor(name), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return r.meet(ctx, name)
	}
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			r.event(corev1.EventTypeWarning, reasonFailedCreate, "Error creating: %v", err)
		}
		answer := refused
		if unknownOutcome(err) {
			answer = lost
		}
		return nil, answer, fmt.Errorf("create pod %s/%s: %w", r.rs.Namespace, name, err)
	}
	r.created(pod)
	return pod, settled, nil
}

func (r *run) created(pod *corev1.Pod) {
	r.event(corev1.EventTypeNormal, reasonSuccessfulCreate, "Created pod: %v", pod.Name)
	r.deps.Timeline.Mark(timeline.PodRef(pod), Name, timeline.StageAccepted, "", nil).SetCause(timeline.RefOf(kind.Kind, r.rs))
}

// meet looks at the Pod that has the name already. If it is one of the ReplicaSet's that the cache does not show, it
// is the outcome of an earlier attempt. Otherwise the name is taken, and the run is repeated with another.
func (r *run) meet(ctx context.Context, name string) (*corev1.Pod, answer, error) {
	pod, err := r.lookUp(ctx, name)
	if err != nil {
		return nil, lost, fmt.Errorf("create pod %s/%s: it exists, read it: %w", r.rs.Namespace, name, err)
	}
	if pod == nil || pod.DeletionTimestamp != nil || !metav1.IsControlledBy(pod, r.rs) {
		return nil, settled, fmt.Errorf("create pod %s/%s: the name is taken, trying another", r.rs.Namespace, name)
	}
	r.created(pod)
	return pod, settled, nil
}

// lookUp reads a Pod from the API, nil if there is none. It lists, because the right to list is what the role of
// this controller has.
func (r *run) lookUp(ctx context.Context, name string) (*corev1.Pod, error) {
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

// podFor makes the Pod of that name from the template.
func (r *run) podFor(name string) *corev1.Pod {
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

// remove deletes count of the active Pods, those first that are missed least.
func (r *run) remove(ctx context.Context, count int) error {
	related, err := r.relatedPods()
	if err != nil {
		return err
	}
	victims, rest := chooseVictims(r.active, related, count, r.deps.Clock.Now())
	uids := make([]types.UID, len(victims))
	for i, pod := range victims {
		uids[i] = pod.UID
	}
	// The expectation comes before the deletion, so that no event can come before the expectation.
	_ = r.expected.ExpectDeletions(logr.Discard(), r.key, uids...) // its error is always nil
	var mu sync.Mutex                                              // guards what follows, and the owner's fields
	var failures []error
	parallel(r.config.Parallel, victims, func(pod *corev1.Pod) {
		err := r.deleteOne(ctx, pod)
		if err == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		failures = append(failures, err)
		if unknownOutcome(err) {
			r.owner.doubtDelete(pod.UID, pod.Name)
			return
		}
		r.expected.ObserveDeletions(logr.Discard(), r.key, pod.UID)
		rest = append(rest, pod)
	})
	r.active = rest
	return errors.Join(failures...)
}

// deleteOne deletes a Pod, and no other one of that name. A Pod that is gone is deleted.
func (r *run) deleteOne(ctx context.Context, pod *corev1.Pod) error {
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

// settleDeletes finds out what became of deletions whose answer was lost. Until that is known nothing is decided.
func (r *run) settleDeletes(ctx context.Context) error {
	for uid, name := range r.owner.deletes {
		pod, err := r.lookUp(ctx, name)
		if err != nil {
			return fmt.Errorf("find out whether pod %s/%s was deleted: %w", r.rs.Namespace, name, err)
		}
		if pod != nil && pod.UID == uid && pod.DeletionTimestamp == nil {
			r.expected.ObserveDeletions(logr.Discard(), r.key, uid) // it was not
		}
		delete(r.owner.deletes, uid)
	}
	return nil
}

func (o *owner) doubtDelete(uid types.UID, name string) {
	if o.deletes == nil {
		o.deletes = make(map[types.UID]string)
	}
	o.deletes[uid] = name
}

func (r *run) event(eventType, reason, format string, args ...any) {
	r.recorder.Eventf(r.rs, eventType, reason, format, args...)
}

// unknownOutcome reports whether a request with this error may have been carried out all the same: no answer came,
// or one that does not say.
func unknownOutcome(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return true
	}
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err) ||
		apierrors.IsUnexpectedServerError(err) || answer.Status().Code >= 500
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
		group.Go(func() {
			for item := range next {
				do(item)
			}
		})
	}
	for _, item := range items {
		next <- item
	}
	close(next)
	group.Wait()
}
