package provision

// phase is how far a claim is on its way from created to Bound:
//
//	Pending -> Queued -> Calling -> Saving -> Binding -> Bound -> Finishing -> Forgotten
//
// A call that fails leads from Calling back to Pending. A volume that cannot be saved leads from Saving to Cleaning, from there
// through Queued and Calling, where it is deleted, and back to Pending. A claim that will not be bound to its saved volume is
// Abandoned. A volume that disappears leads from any phase after Saving back to Pending. A claim that is deleted, or that
// is not ours any more, is Forgotten once no volume can exist for it.
type phase int

const (
	// phasePending: the claim has no volume, and no call is queued. It may wait for a retry, or for a change.
	phasePending phase = iota
	// phaseQueued: a call of the provisioner is queued.
	phaseQueued
	// phaseCalling: the provisioner is being called, to provision a volume or to delete one that could not be saved.
	phaseCalling
	// phaseSaving: the provisioner returned a volume, and its PersistentVolume is to be created.
	phaseSaving
	// phaseCleaning: saving was given up, and the volume is to be deleted.
	phaseCleaning
	// phaseBinding: the PersistentVolume exists, and Kubernetes is to bind the claim to it.
	phaseBinding
	// phaseBound: the claim is Bound. The removal of its intent yields to claims that are not.
	phaseBound
	// phaseFinishing: the intent of the Bound claim is to be removed now.
	phaseFinishing
	// phaseAbandoned: the PersistentVolume exists, and the claim is being deleted or asks for another volume.
	phaseAbandoned
	// phaseForgotten: the state is not the claim's any more.
	phaseForgotten
)

// volumeFact is what is known of the PersistentVolume of a claim.
type volumeFact int

const (
	// volumeNone: it has none.
	volumeNone volumeFact = iota
	// volumeSaved: it has one, by the cache or by a write of ours that the cache need not show yet.
	volumeSaved
	// volumeUnverified: we wrote one so long ago that the cache should show it, and it does not.
	volumeUnverified
)

// readiness is whether the provisioner may be called for a claim now.
type readiness int

const (
	// readyNow: no backoff runs.
	readyNow readiness = iota
	// readyLater: a backoff runs.
	readyLater
	// readyOnChange: the claim was given up or refused, and waits for a change or a resync.
	readyOnChange
)

// obstacle is why the provisioner cannot be called for a claim that is ready.
type obstacle int

const (
	obstacleNone obstacle = iota
	// obstacleNoClass: the StorageClass does not exist.
	obstacleNoClass
	// obstacleBlock: the provisioner does not support raw block volumes.
	obstacleBlock
	// obstacleForeignClass: the StorageClass names another provisioner.
	obstacleForeignClass
	// obstacleNoNode: the class waits for the first consumer, and no node is selected yet.
	obstacleNoNode
)

// claimFacts is all that the next action for a claim depends on, beside its phase. Facts that the phase makes irrelevant
// are left at their zero values.
type claimFacts struct {
	// stopping: the controller stops, and nothing new is begun.
	stopping bool
	// exists: the claim is in the cache. The four facts that follow are false if it is not.
	exists bool
	// deleting, bound: the claim is being deleted; it is Bound.
	deleting, bound bool
	// elsewhere: the claim names another volume than the one that was provisioned for it.
	elsewhere bool
	// intent: the claim has our finalizer, by the cache or by our own last write.
	intent bool
	volume volumeFact
	// pausing: a backoff runs between two tries to save or to delete the volume.
	pausing bool
	// mayExist: the provisioner may have made a volume that no PersistentVolume names.
	mayExist bool
	// wanted: the claim asks this provisioner for a volume.
	wanted    bool
	readiness readiness
	obstacle  obstacle
}

// action is the one thing to do next for a claim.
type action int

const (
	// doNothing: what the claim waits for brings it back.
	doNothing action = iota
	// doVerify: read the PersistentVolume from the API server, then decide again.
	doVerify
	// doProvision: write the intent, then queue the call of the provisioner.
	doProvision
	// doReport: report the obstacle, and wait for its end.
	doReport
	// doRetryLater: come back when the backoff ends.
	doRetryLater
	// doSave: create the PersistentVolume.
	doSave
	// doClean: queue the deletion of the volume that could not be saved.
	doClean
	// doYield: queue the removal of the intent behind the writes of claims that are not Bound.
	doYield
	// doRemoveIntent: remove the intent and keep the state.
	doRemoveIntent
	// doFinish: remove the intent, then forget the claim.
	doFinish
	// doForget: forget the claim.
	doForget
)

// decision is an action, and the phase that the claim is in when it is taken.
type decision struct {
	do    action
	phase phase
}

// next decides what to do for a claim.
func next(p phase, f claimFacts) decision {
	switch {
	case p == phaseQueued, p == phaseCalling, p == phaseForgotten:
		return decision{doNothing, p} // the result of the call brings the claim back
	case f.volume == volumeUnverified:
		return decision{doVerify, p}
	case f.volume == volumeSaved:
		return nextSaved(p, f)
	case p == phaseSaving && f.pausing && !f.stopping:
		return decision{doNothing, p}
	case p == phaseSaving:
		return decision{doSave, p} // also while the controller stops: the next one would have to provision it again
	case p == phaseCleaning && (f.pausing || f.stopping):
		return decision{doNothing, p}
	case p == phaseCleaning:
		return decision{doClean, p}
	case f.stopping:
		return decision{doNothing, phasePending}
	}
	return nextPending(f)
}

// nextSaved decides for a claim whose PersistentVolume exists.
func nextSaved(p phase, f claimFacts) decision {
	switch {
	case !f.exists:
		return decision{doForget, phaseForgotten}
	case f.bound && f.intent && !f.deleting && p != phaseFinishing:
		return decision{doYield, phaseBound}
	case f.bound:
		return decision{doFinish, phaseFinishing}
	case f.deleting, f.elsewhere:
		return decision{doRemoveIntent, phaseAbandoned}
	}
	// Kubernetes writes the claim next, to bind it. A patch of ours would make that write fail, and Kubernetes repeats it only
	// after a delay that all claims share. Nor do we bind it: docs/provisioners.md says why.
	return decision{doNothing, phaseBinding}
}

// nextPending decides for a claim that has no PersistentVolume.
func nextPending(f claimFacts) decision {
	switch {
	case !f.mayExist && !f.exists:
		return decision{doForget, phaseForgotten}
	case !f.mayExist && !f.wanted:
		return decision{doFinish, phasePending}
	case f.readiness == readyLater:
		return decision{doRetryLater, phasePending}
	case f.readiness == readyOnChange && !f.mayExist:
		return decision{doRemoveIntent, phasePending} // the intent must not keep a claim that is left alone from deletion
	case f.readiness == readyOnChange:
		return decision{doNothing, phasePending}
	case f.obstacle == obstacleNoClass:
		return decision{doReport, phasePending}
	case f.mayExist:
		return decision{doProvision, phasePending} // an unfinished call is repeated whatever has changed since
	case f.obstacle == obstacleNoNode:
		return decision{doFinish, phasePending} // the scheduler's annotation brings the claim back
	case f.obstacle != obstacleNone:
		return decision{doReport, phasePending}
	}
	return decision{doProvision, phasePending}
}
