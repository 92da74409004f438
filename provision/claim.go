package provision

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/timeline"
)

// cacheLagLimit is how long a saved volume may stay unseen in the cache before the API server is asked.
const cacheLagLimit = 30 * time.Second

// syncClaim takes one look at a claim and does the one thing that comes next for it.
func (e *engine) syncClaim(ctx context.Context, key string) {
	uid := types.UID(key)
	claim, st := e.claims.get(uid), e.states.get(uid)
	if st == nil {
		if ctx.Err() != nil || claim == nil || !(e.wanted(claim) || e.ownsIntent(claim)) {
			return
		}
		st = e.newState(claim)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.forgotten {
		e.decide.Add(key) // by another worker, while this one waited for it
		return
	}
	// Read again: another worker, for which this one waited, may have seen a newer claim and acted on it.
	claim = e.claims.get(uid)
	defer func() { e.gate.setWaiting(st.uid, st.blocksOnWrites()) }()
	switch {
	case st.calling:
		// the call's result looks again
	case e.hasVolume(ctx, st):
		e.finishSaved(ctx, st, claim)
	case st.save != nil:
		e.saveVolume(ctx, st, claim)
	case ctx.Err() != nil:
		// stopping: nothing new is begun
	case st.outcome == outcomeNone && claim == nil:
		e.forget(st)
	case st.outcome == outcomeNone && !e.wanted(claim):
		e.finish(ctx, st, claim)
	default:
		e.startProvision(ctx, st, claim)
	}
}

// wanted returns whether the claim, of which no volume is known, asks this provisioner for one.
func (e *engine) wanted(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		return false
	}
	if q, ok := e.provisioner.(Qualifier); ok && !q.ShouldProvision(claim) {
		return false
	}
	return e.serves(claimProvisioner(claim))
}

// ownsIntent returns whether the claim bears an intent that is ours to resolve. Where several controllers
// may share one finalizer, only a claim that we would serve is.
func (e *engine) ownsIntent(claim *corev1.PersistentVolumeClaim) bool {
	if !e.hasIntentInCache(claim) {
		return false
	}
	if e.settings.intentOwned {
		return true
	}
	if q, ok := e.provisioner.(Qualifier); ok && !q.ShouldProvision(claim) {
		return false
	}
	return e.serves(claimProvisioner(claim))
}

func (e *engine) hasIntentInCache(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, e.settings.intentFinalizer)
}

// newState begins to remember the claim. An intent that is there already was written before this run, and
// what became of it is unknown.
func (e *engine) newState(claim *corev1.PersistentVolumeClaim) *claimState {
	st := &claimState{
		uid: claim.UID, ref: timeline.RefOf(claimKind, claim), since: e.clock.Now(),
	}
	if e.ownsIntent(claim) {
		st.outcome, st.found = outcomeUnknown, claim
	}
	return e.states.add(st)
}

func (e *engine) forget(st *claimState) {
	st.queued.End(nil)
	st.queued, st.binding, st.forgotten = nil, false, true
	e.states.remove(st.uid)
	e.claimLimiter.Forget(string(st.uid))
	e.claimWrites.Forget(string(st.uid))
}

// hasVolume returns whether the claim's volume is in the API, by the cache or by our own last write. A volume of somebody
// else's is the end only where none of ours can exist: what was begun is saved, and Kubernetes then releases it.
func (e *engine) hasVolume(ctx context.Context, st *claimState) bool {
	if e.volumes.hasOwn(st.uid) {
		st.saved = time.Time{} // from now on the cache knows better
		return true
	}
	if st.outcome == outcomeNone && e.volumes.hasForeign(st.uid) {
		return true
	}
	if st.saved.IsZero() {
		return false
	}
	if e.clock.Since(st.saved) < cacheLagLimit {
		return true
	}
	_, err := e.client.CoreV1().PersistentVolumes().Get(ctx, st.savedName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		st.saved = time.Time{}
		return false
	}
	return true
}

// finishSaved ends the work on a claim whose volume is saved.
func (e *engine) finishSaved(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) {
	if st.save != nil {
		st.save.span.End(nil)
	}
	st.save, st.outcome = nil, outcomeNone
	st.claim, st.class, st.node = nil, nil, nil
	st.retry.succeeded()
	e.claimLimiter.Forget(string(st.uid))
	if claim == nil {
		e.forget(st)
		return
	}
	st.binding = false
	switch {
	case isBound(claim):
		e.removeIntentWhenBound(ctx, st, claim)
	case claim.DeletionTimestamp != nil, st.boundElsewhere(claim):
		e.removeIntent(ctx, st, claim)
	default:
		// Kubernetes writes the claim next, to bind it. A patch of ours would make that write fail, and it is repeated
		// only after a delay that all claims share. Nor is it bound by us: docs/provisioners.md says why.
		st.binding = true
	}
}

// removeIntentWhenBound ends the work on a claim that is Bound. Whose claim it is has what he asked for and does not wait for the intent's
// removal, which therefore gives way to claims that are waited for; a claim that is being deleted does wait for it.
func (e *engine) removeIntentWhenBound(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) {
	if st.bound.IsZero() {
		st.bound = e.clock.Now()
		e.mark(st, timeline.StageBound, nil)
	}
	if e.hasIntent(st, claim) && claim.DeletionTimestamp == nil && !st.tidying {
		e.cleanups.Add(string(st.uid))
		return
	}
	e.finish(ctx, st, claim)
}

// cleanup has the intent removed from a claim that is Bound, when its turn has come.
func (e *engine) cleanup(ctx context.Context, key string) {
	st := e.states.get(types.UID(key))
	if st == nil {
		return
	}
	st.mu.Lock()
	since := st.bound
	st.mu.Unlock()
	if !e.gate.yield(context.WithoutCancel(ctx), since) {
		return // the next run finds it
	}
	st.mu.Lock()
	st.tidying = true
	st.mu.Unlock()
	e.syncClaim(ctx, key)
}

// finish takes the intent off the claim and then forgets the claim. It remembers it for as long as the
// cache still shows the intent: seen without a memory, that would mean that a volume may exist.
func (e *engine) finish(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) {
	if !e.removeIntent(ctx, st, claim) || st.intent == intentRemoved && e.hasIntentInCache(claim) {
		return
	}
	e.forget(st)
}

// startProvision checks all that can be checked without the provisioner, writes the intent and queues the call.
func (e *engine) startProvision(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) {
	current := st.object(claim)
	if st.outcome == outcomeUnknown && st.claim != nil {
		current = st.claim // an unfinished call is repeated with the same input
	}
	name := claimClass(current)
	e.states.setClass(st.uid, name)
	class := e.class(name)
	inputs := fingerprint(claim, class)
	now := e.clock.Now()
	if !st.retry.due(now, inputs, st.resync.Swap(false)) {
		if left := st.retry.left(now); left > 0 {
			e.requeue(st.uid, left) // of several moments for one key the queue keeps the earliest alone
		}
		if st.retry.waiting == waitForChange && st.outcome == outcomeNone && claim != nil {
			e.removeIntent(ctx, st, claim) // a claim that is left alone must not be held back from deletion
		}
		return
	}
	st.retry.start(inputs)
	if st.outcome == outcomeUnknown && st.class != nil {
		class = st.class
	}
	if class == nil {
		e.classMissing(st, current, name)
		return
	}
	if st.outcome == outcomeNone && !e.validate(ctx, st, current, class) {
		return
	}
	if st.queued == nil {
		st.queued = e.timeline.Begin(st.ref, timelineOwner, StageQueued, "")
	}
	if claim != nil {
		written, ok := e.addIntent(ctx, st, claim)
		if !ok {
			return
		}
		if st.outcome == outcomeNone || st.claim == nil {
			current = written
		}
	}
	st.claim, st.class = current, class
	st.calling = true
	e.calls.Add(string(st.uid))
}

func (e *engine) class(name string) *storagev1.StorageClass {
	if obj, ok, err := e.classes.GetByKey(name); ok && err == nil {
		if class, is := obj.(*storagev1.StorageClass); is {
			return class
		}
	}
	return nil
}

// classMissing waits for the class, which need not be an error: it may come after the claim.
func (e *engine) classMissing(st *claimState, claim *corev1.PersistentVolumeClaim, name string) {
	err := fmt.Errorf("storage class %q is not there; create it", name)
	e.logger.Warn("cannot provision", "claim", claim.Namespace+"/"+claim.Name, "error", err)
	e.mark(st, StageQueued, err)
	if st.outcome == outcomeUnknown {
		e.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, err.Error()+
			": a volume may exist that was provisioned with it")
	}
	delay := e.claimLimiter.When(string(st.uid))
	st.retry.backOff(e.clock.Now(), delay)
	e.requeue(st.uid, delay)
}

// validate returns whether the claim and its class go together with this provisioner. If not, the claim
// is left alone until something changes.
func (e *engine) validate(
	ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass,
) bool {
	if wantsBlock(claim) {
		if b, ok := e.provisioner.(BlockProvisioner); !ok || !b.SupportsBlock() {
			text := e.name + " does not support block volume provisioning"
			e.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, text)
			e.mark(st, timeline.StageProvisioning, fmt.Errorf("provision claim %q: %s", claim.Name, text))
			st.retry.park()
			return false
		}
	}
	if !e.serves(class.Provisioner) {
		e.logger.Warn("claim names this provisioner but its class names another",
			"claim", claim.Namespace+"/"+claim.Name, "class", class.Name, "class provisioner", class.Provisioner)
		st.retry.park()
		return false
	}
	if waitsForConsumer(class) && selectedNode(claim) == "" {
		e.finish(ctx, st, claim) // the scheduler's annotation will bring it back
		return false
	}
	return true
}
