package provision

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/timeline"
)

// cacheLagLimit is how long the cache may lack a PersistentVolume that we created before the API server is asked for it.
const cacheLagLimit = 30 * time.Second

// syncClaim does what comes next for a claim.
func (e *engine) syncClaim(ctx context.Context, key string) {
	uid := types.UID(key)
	claim, st := e.claims.get(uid), e.states.get(uid)
	if st == nil {
		if ctx.Err() != nil || claim == nil || !(e.wants(claim) || e.ownsIntent(claim)) {
			return
		}
		st = e.newState(claim)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.phase == phaseForgotten {
		e.queues.claims.Add(key) // another worker forgot it while this one waited for mu
		return
	}
	// Read again: while this worker waited, another one may have seen a newer claim and acted on it.
	claim = e.claims.get(uid)
	defer func() { e.gate.setWaiting(st.uid, st.blocksOnWrites()) }()
	for again := true; again; {
		again = e.step(ctx, st, claim)
	}
}

// step takes one decision for a claim and acts on it. It returns true if the action changed the facts, so that the next
// decision can be taken at once. The caller holds st.mu.
func (e *engine) step(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) (again bool) {
	facts, target := e.gather(ctx, st, claim)
	d := next(st.phase, facts)
	if facts.volume == volumeSaved {
		e.onSaved(st, d.phase)
	}
	st.enter(d.phase, e.clock.Now())
	switch d.do {
	case doVerify:
		e.verifyVolume(ctx, st)
		return true
	case doProvision:
		e.startProvision(ctx, st, claim, target)
	case doReport:
		st.retry.start(target.inputs)
		e.report(st, target, facts.obstacle)
	case doRetryLater:
		e.requeue(st.uid, st.retry.left(e.clock.Now())) // of several times for one key the queue keeps the earliest
	case doSave:
		return e.saveVolume(ctx, st)
	case doClean:
		e.queueCall(st)
	case doYield:
		e.queues.cleanups.Add(string(st.uid))
	case doRemoveIntent:
		e.removeIntent(ctx, st, claim)
	case doFinish:
		e.finish(ctx, st, claim)
	case doForget:
		e.forget(st)
	case doNothing:
	}
	return false
}

// target is what the provisioner would be called with, and what the outcome depends on.
type target struct {
	attempt
	className string
	// inputs is the fingerprint of the current claim and class.
	inputs string
}

// gather collects the facts for the next decision, and the target of a call if there is none to wait for. The caller holds
// st.mu.
func (e *engine) gather(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) (claimFacts, target) {
	f := claimFacts{stopping: ctx.Err() != nil, mayExist: st.mayExist()}
	if st.phase == phaseQueued || st.phase == phaseCalling {
		return f, target{}
	}
	f.volume = e.volumeOf(st)
	if claim != nil {
		f.exists, f.deleting, f.bound = true, claim.DeletionTimestamp != nil, isBound(claim)
		f.elsewhere, f.intent = st.isElsewhere(claim), e.hasIntent(st, claim)
	}
	switch {
	case f.volume != volumeNone:
		return f, target{}
	case st.unsaved != nil:
		f.pausing = e.clock.Now().Before(st.unsaved.notBefore)
		return f, target{}
	case f.stopping:
		return f, target{}
	}
	f.wanted = claim != nil && !f.mayExist && e.wants(claim)
	if !f.wanted && !f.mayExist {
		return f, target{}
	}
	to := e.targetOf(st, claim)
	if st.notified.Swap(false) {
		st.retry.reset()
	}
	if f.readiness = st.retry.readiness(e.clock.Now(), to.inputs, st.resync.Swap(false)); f.readiness == readyNow {
		f.obstacle = e.obstacleOf(to)
	}
	return f, to
}

// volumeOf returns what is known of the PersistentVolume. One of another provisioner counts only where none of ours can
// exist: what was begun is saved, and Kubernetes then releases it.
func (e *engine) volumeOf(st *claimState) volumeFact {
	switch {
	case e.volumes.hasOwn(st.uid):
		st.saved.at = time.Time{} // the cache has shown it and is right from now on
		return volumeSaved
	case !st.mayExist() && e.volumes.hasForeign(st.uid):
		return volumeSaved
	case st.saved.at.IsZero():
		return volumeNone
	case e.clock.Since(st.saved.at) < cacheLagLimit:
		return volumeSaved
	}
	return volumeUnverified
}

// verifyVolume asks the API server for a PersistentVolume that the cache should show by now.
func (e *engine) verifyVolume(ctx context.Context, st *claimState) {
	_, err := e.client.CoreV1().PersistentVolumes().Get(ctx, st.saved.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		st.saved.at = time.Time{}
		return
	}
	st.saved.at = e.clock.Now()
}

// targetOf returns what the provisioner would be called with for a claim: after a call with an unknown outcome, the same.
func (e *engine) targetOf(st *claimState, claim *corev1.PersistentVolumeClaim) target {
	to := target{attempt: attempt{claim: st.object(claim), node: st.attempt.node}}
	if st.mayExist() && st.attempt.claim != nil {
		to.claim = st.attempt.claim
	}
	to.className = claimClass(to.claim)
	e.states.setClass(st.uid, to.className)
	to.class = e.class(to.className)
	to.inputs = fingerprint(claim, to.class)
	if st.mayExist() && st.attempt.class != nil {
		to.class = st.attempt.class
	}
	return to
}

// obstacleOf returns why the provisioner cannot be called with the target.
func (e *engine) obstacleOf(to target) obstacle {
	switch {
	case to.class == nil:
		return obstacleNoClass
	case wantsBlock(to.claim) && !e.supportsBlock():
		return obstacleBlock
	case !e.serves(to.class.Provisioner):
		return obstacleForeignClass
	case waitsForConsumer(to.class) && selectedNode(to.claim) == "":
		return obstacleNoNode
	}
	return obstacleNone
}

func (e *engine) supportsBlock() bool {
	b, ok := e.provisioner.(BlockProvisioner)
	return ok && b.SupportsBlock()
}

// wants returns whether the claim, which has no volume that we know of, asks this provisioner for one.
func (e *engine) wants(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil && e.isOurClaim(claim)
}

// isOurClaim returns whether the claim is this provisioner's, and the provisioner does not refuse it.
func (e *engine) isOurClaim(claim *corev1.PersistentVolumeClaim) bool {
	if q, ok := e.provisioner.(Qualifier); ok && !q.ShouldProvision(claim) {
		return false
	}
	return e.serves(claimProvisioner(claim))
}

// newState returns the state of a claim that is seen first. The outcome of an intent that the claim has already is
// unknown: an earlier process wrote it.
func (e *engine) newState(claim *corev1.PersistentVolumeClaim) *claimState {
	now := e.clock.Now()
	st := &claimState{uid: claim.UID, ref: timeline.RefOf(claimKind, claim), since: now, phaseSince: now}
	if e.ownsIntent(claim) {
		st.outcome, st.found = outcomeUnknown, claim
	}
	return e.states.add(st)
}

// onSaved ends what was unfinished for a claim whose PersistentVolume exists, before it enters the phase.
func (e *engine) onSaved(st *claimState, entered phase) {
	if st.unsaved != nil {
		st.unsaved.span.End(nil)
		st.unsaved = nil
	}
	if st.mayExist() {
		st.outcome = outcomeNone
	}
	st.attempt = attempt{}
	st.retry.succeeded()
	e.limits.claims.Forget(string(st.uid))
	isBound := func(p phase) bool { return p == phaseBound || p == phaseFinishing }
	if isBound(entered) && !isBound(st.phase) {
		e.mark(st, timeline.StageBound, nil)
	}
}

// startProvision writes the intent and queues the call.
func (e *engine) startProvision(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim, to target) {
	st.retry.start(to.inputs)
	if st.queued == nil {
		st.queued = e.timeline.Begin(st.ref, timelineOwner, StageQueued, "")
	}
	if claim != nil {
		written, ok := e.addIntent(ctx, st, claim)
		if !ok {
			return
		}
		if !st.mayExist() || st.attempt.claim == nil {
			to.claim = written
		}
	}
	st.attempt = to.attempt
	e.queueCall(st)
}

func (e *engine) queueCall(st *claimState) {
	st.enter(phaseQueued, e.clock.Now())
	e.queues.calls.Add(string(st.uid))
}

// cleanup removes the intent of a claim that is Bound. The owner of the claim does not wait for that, so it yields to
// claims that are not Bound yet.
func (e *engine) cleanup(ctx context.Context, key string) {
	st := e.states.get(types.UID(key))
	if st == nil {
		return
	}
	st.mu.Lock()
	since := st.phaseSince
	st.mu.Unlock()
	if !e.gate.yield(context.WithoutCancel(ctx), since) {
		return // the next run finds the intent
	}
	st.beginFinish(e.clock.Now())
	e.syncClaim(ctx, key)
}

// beginFinish makes a claim that is bound one whose intent is removed.
func (st *claimState) beginFinish(now time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.phase == phaseBound {
		st.enter(phaseFinishing, now)
	}
}

// finish removes the intent and then forgets the claim. It keeps the state for as long as the cache still shows the intent:
// without the state, that would mean that a volume may exist.
func (e *engine) finish(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) {
	if !e.removeIntent(ctx, st, claim) || st.intent == intentRemoved && e.hasIntentInCache(claim) {
		return
	}
	e.forget(st)
}

func (e *engine) forget(st *claimState) {
	st.queued.End(nil)
	st.queued = nil
	st.enter(phaseForgotten, e.clock.Now())
	e.states.remove(st.uid)
	e.limits.claims.Forget(string(st.uid))
	e.limits.claimWrites.Forget(string(st.uid))
}

func (e *engine) class(name string) *storagev1.StorageClass {
	if obj, ok, err := e.classes.GetByKey(name); ok && err == nil {
		if class, is := obj.(*storagev1.StorageClass); is {
			return class
		}
	}
	return nil
}

// report reports why the provisioner is not called. The claim is left alone until something changes, or until the backoff
// ends if its class does not exist: that need not be an error, for the class may be created after the claim.
func (e *engine) report(st *claimState, to target, why obstacle) {
	name := to.claim.Namespace + "/" + to.claim.Name
	switch why {
	case obstacleNoClass:
		err := fmt.Errorf("storage class %q not found", to.className)
		e.logger.Warn("cannot provision claim", "claim", name, "error", err)
		e.mark(st, StageQueued, err)
		if st.mayExist() {
			e.events.Event(to.claim, corev1.EventTypeWarning, reasonProvisioningFailed, err.Error()+
				"; create it again: a volume may exist that was provisioned with it")
		}
		delay := e.limits.claims.When(string(st.uid))
		st.retry.backOff(e.clock.Now(), delay)
		e.requeue(st.uid, delay)
		return
	case obstacleBlock:
		text := e.name + " does not support block volume provisioning"
		e.events.Event(to.claim, corev1.EventTypeWarning, reasonProvisioningFailed, text)
		e.mark(st, timeline.StageProvisioning, fmt.Errorf("provision claim %q: %s", to.claim.Name, text))
	case obstacleForeignClass:
		text := fmt.Sprintf("StorageClass %q is of provisioner %q, which %s does not stand in for: create the claim again with a StorageClass "+
			"of provisioner %s", to.class.Name, to.class.Provisioner, e.name, e.name)
		e.events.Event(to.claim, corev1.EventTypeWarning, reasonProvisioningFailed, text)
		e.mark(st, timeline.StageProvisioning, fmt.Errorf("provision claim %q: %s", to.claim.Name, text))
		e.logger.Warn("claim names this provisioner but its class names another",
			"claim", name, "class", to.class.Name, "classProvisioner", to.class.Provisioner)
	case obstacleNone, obstacleNoNode:
	}
	st.retry.park()
}
