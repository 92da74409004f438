package reconciler

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// reconcileAll reconciles every pair whose actual state differs from the desired one, and every node status to write.
func (e *Engine) reconcileAll() {
	pairs := make(map[cache.VolumeNode]struct{})
	used := make(map[types.NodeName]struct{})
	for _, attached := range e.deps.Actual.GetAttachedVolumes() {
		used[attached.NodeName] = struct{}{}
		inSync := attached.Confirmed && attached.DetachRequestedTime.IsZero() &&
			e.deps.Desired.VolumeExists(attached.VolumeName, attached.NodeName)
		if !inSync {
			pairs[cache.VolumeNode{Volume: attached.VolumeName, Node: attached.NodeName}] = struct{}{}
		}
	}
	for _, pair := range e.deps.Desired.GetVolumeNodesToAttach() {
		if e.deps.Actual.GetAttachState(pair.Volume, pair.Node) != cache.AttachStateAttached {
			pairs[pair] = struct{}{}
		}
	}
	for node := range e.goneSince {
		if _, ok := used[node]; !ok {
			delete(e.goneSince, node)
		}
	}
	reports := make(map[types.NodeName]struct{})
	for _, node := range e.deps.Actual.GetNodesToUpdateStatusFor() {
		reports[node] = struct{}{}
	}
	e.reconcilePairs(pairs, reports)
}

// reconcileDirty reconciles the pairs that changed or are due, until none is left.
func (e *Engine) reconcileDirty(ctx context.Context) {
	for {
		dirty := e.inbox.drain()
		due := e.dueWakeups()
		if len(dirty.pairs)+len(dirty.nodes)+len(dirty.reports)+len(dirty.written)+len(due) == 0 {
			return
		}
		for node := range dirty.nodes {
			attachedVolumes := e.deps.Actual.GetAttachedVolumesForNode(node)
			e.trackDeletion(node, len(attachedVolumes) > 0)
			for _, attached := range attachedVolumes {
				if e.backoffs != nil { // the node's previous state may have caused the failures
					e.backoffs.ForgetFailures(attached.VolumeName, operationexecutor.OperationNode(attached.VolumeSpec, node))
				}
				addTo(&dirty.pairs, cache.VolumeNode{Volume: attached.VolumeName, Node: node})
			}
		}
		for _, pair := range due {
			if pair.Volume == "" {
				addTo(&dirty.reports, pair.Node)
			} else {
				addTo(&dirty.pairs, pair)
			}
		}
		for _, result := range dirty.written {
			e.onStatusWritten(result)
		}
		e.reconcilePairs(e.withWaiting(dirty.pairs), dirty.reports)
		if ctx.Err() != nil {
			return
		}
	}
}

// withWaiting adds the pairs that wait for a change of one of the given pairs' volumes.
func (e *Engine) withWaiting(pairs map[cache.VolumeNode]struct{}) map[cache.VolumeNode]struct{} {
	var more []cache.VolumeNode
	for pair := range pairs {
		for node := range e.waiting[pair.Volume] {
			more = append(more, cache.VolumeNode{Volume: pair.Volume, Node: node})
		}
		delete(e.waiting, pair.Volume)
	}
	for _, pair := range more {
		pairs[pair] = struct{}{}
	}
	return pairs
}

// reconcilePairs reconciles the given pairs: first detaches, then node statuses, then attaches.
func (e *Engine) reconcilePairs(pairs map[cache.VolumeNode]struct{}, reports map[types.NodeName]struct{}) {
	var wanted []cache.VolumeToAttach
	for pair := range pairs {
		e.clearWait(pair)
		if want, ok := e.deps.Desired.GetVolumeToAttach(pair.Volume, pair.Node); ok {
			wanted = append(wanted, want)
			continue
		}
		if attached, ok := e.deps.Actual.GetAttachedVolume(pair.Volume, pair.Node); ok {
			e.reconcileDetach(pair, attached)
		}
	}
	for node := range reports {
		if !e.manages(node) {
			continue
		}
		if until := e.statusBackoffs[node].until; until.After(e.clock.Now()) {
			e.wakeups.Set(cache.VolumeNode{Node: node}, until)
			continue
		}
		e.statuses.write(e.operationCtx, node)
	}
	for _, want := range wanted {
		e.reconcileAttach(cache.VolumeNode{Volume: want.VolumeName, Node: want.NodeName}, want)
	}
}

// clearWait removes the pair's wake-up and its wait for the volume, because it is reconciled now.
func (e *Engine) clearWait(pair cache.VolumeNode) {
	e.wakeups.Remove(pair)
	if nodes := e.waiting[pair.Volume]; nodes != nil {
		delete(nodes, pair.Node)
		if len(nodes) == 0 {
			delete(e.waiting, pair.Volume)
		}
	}
}

// waitForVolume reconciles the pair again when the attachment of its volume to any node changes.
func (e *Engine) waitForVolume(pair cache.VolumeNode) {
	nodes := e.waiting[pair.Volume]
	addTo(&nodes, pair.Node)
	e.waiting[pair.Volume] = nodes
}

// blocked reports whether the operation cannot start now; then it schedules the pair for when it can.
func (e *Engine) blocked(pair cache.VolumeNode, operationNode types.NodeName, operation string) bool {
	if e.deps.Executor.IsOperationPending(pair.Volume, operationNode) {
		e.waitForVolume(pair)
		return true
	}
	if e.deps.Executor.IsOperationSafeToRetry(pair.Volume, operationNode, operation) {
		return false
	}
	if e.backoffs != nil {
		e.wakeups.Set(pair, e.clock.Now().Add(e.backoffs.RetryAfter(pair.Volume, operationNode, operation)))
	}
	return true
}

func (e *Engine) manages(node types.NodeName) bool {
	return e.deps.Manages == nil || e.deps.Manages(node)
}

// reconcileDetach detaches a pair that is attached but not desired, or schedules the next attempt.
func (e *Engine) reconcileDetach(pair cache.VolumeNode, attached cache.AttachedVolume) {
	if _, ok := e.detaching[pair]; ok || !e.manages(pair.Node) {
		return // the end of the detach, or the other controller's work, makes the pair dirty again
	}
	operationNode := operationexecutor.OperationNode(attached.VolumeSpec, pair.Node)
	if e.blocked(pair, operationNode, operationexecutor.OperationDetach) {
		return
	}
	// An operation may have ended since the pair was read, so it is read again now that none is pending.
	attached, ok := e.deps.Actual.GetAttachedVolume(pair.Volume, pair.Node)
	if !ok {
		return
	}
	elapsed, err := e.deps.Actual.SetDetachRequestTime(pair.Volume, pair.Node)
	if err != nil {
		return // it was detached meanwhile
	}
	facts := detachFacts{mounted: attached.MountedByNode, elapsed: elapsed, node: e.nodeFacts(pair.Node)}
	decided := decideDetach(facts, e.limits)
	switch decided.action {
	case actionRequeue:
		e.wakeups.Set(pair, e.clock.Now().Add(decided.after))
		return
	case actionDetach:
	default:
		return
	}
	if until := e.statusBackoffs[pair.Node].until; until.After(e.clock.Now()) {
		e.wakeups.Set(pair, until)
		return
	}
	// An error means that the volume is not on the list, which is what is needed; the list is written in any case.
	reported := e.deps.Actual.RemoveVolumeFromReportAsAttached(pair.Volume, pair.Node) == nil
	e.detaching[pair] = pendingDetach{decision: decided, wasReported: reported, mounted: attached.MountedByNode}
	e.statuses.write(e.operationCtx, pair.Node, pair)
}

// onStatusWritten starts the detaches that waited for the write of the node's status, or schedules a retry.
func (e *Engine) onStatusWritten(result writeResult) {
	if result.err == nil {
		delete(e.statusBackoffs, result.node)
		for _, pair := range result.pairs {
			e.startDetach(pair)
		}
		return
	}
	delay := min(max(2*e.statusBackoffs[result.node].delay, statusRetry), maxStatusRetry)
	until := e.clock.Now().Add(delay)
	e.statusBackoffs[result.node] = statusBackoff{delay: delay, until: until}
	e.wakeups.Set(cache.VolumeNode{Node: result.node}, until)
	e.logger.Warn("failed to write node status; retrying", "node", result.node, "after", delay, "error", result.err)
	for _, pair := range result.pairs {
		e.cancelDetach(pair)
		e.wakeups.Set(pair, until)
	}
}

// cancelDetach undoes what reconcileDetach did to the pair.
func (e *Engine) cancelDetach(pair cache.VolumeNode) {
	if e.detaching[pair].wasReported {
		e.deps.Actual.AddVolumeToReportAsAttached(pair.Volume, pair.Node)
	}
	delete(e.detaching, pair)
}

// startDetach detaches the pair, which its node's status no longer lists, unless a Pod uses it again.
func (e *Engine) startDetach(pair cache.VolumeNode) {
	plan, ok := e.detaching[pair]
	if !ok {
		return
	}
	attached, ok := e.deps.Actual.GetAttachedVolume(pair.Volume, pair.Node)
	if !ok {
		delete(e.detaching, pair)
		return
	}
	// A Pod may use it again, or the node may have reported only now that it has the volume mounted: then it is decided anew.
	if e.deps.Desired.VolumeExists(pair.Volume, pair.Node) || attached.MountedByNode && !plan.mounted {
		e.cancelDetach(pair)
		e.inbox.addPair(pair)
		return
	}
	err := e.deps.Executor.DetachVolume(e.operationCtx, attached.AttachedVolume, plan.verify, e.deps.Actual)
	if err == nil {
		delete(e.detaching, pair)
		if plan.reason != "" {
			e.recordForcedDetach(pair, attached, plan.reason)
		}
		return
	}
	e.cancelDetach(pair)
	e.onStartError(pair, err, "detach")
}

// reconcileAttach attaches a desired pair unless it is attached, or reports what prevents the attach.
func (e *Engine) reconcileAttach(pair cache.VolumeNode, want cache.VolumeToAttach) {
	if _, ok := e.detaching[pair]; ok {
		return // startDetach checks whether a Pod uses it again
	}
	shareable := operationexecutor.IsMultiAttachAllowed(want.VolumeSpec)
	operationNode := operationexecutor.OperationNode(want.VolumeSpec, pair.Node)
	if e.deps.Executor.IsOperationPending(pair.Volume, operationNode) {
		e.waitForVolume(pair)
		return
	}
	facts := attachFacts{state: e.deps.Actual.GetAttachState(pair.Volume, pair.Node), shareable: shareable}
	var others []types.NodeName
	if !shareable && facts.state != cache.AttachStateAttached {
		for _, node := range e.deps.Actual.GetNodesForPossiblyAttachedVolume(pair.Volume) {
			if node != pair.Node {
				others = append(others, node)
			}
		}
		facts.elsewhere = len(others) > 0
		facts.undecided = !slices.ContainsFunc(others, func(node types.NodeName) bool { return e.keepsOrReleases(pair.Volume, node) })
	}
	switch decideAttach(facts).action {
	case actionNone:
		e.deps.Actual.ResetDetachRequestTime(pair.Volume, pair.Node)
	case actionReportMultiAttach:
		e.waitForVolume(pair)
		e.reportMultiAttach(pair, want, others)
	case actionAttach:
		e.deps.Actual.ResetDetachRequestTime(pair.Volume, pair.Node)
		if err := e.deps.Executor.AttachVolume(e.operationCtx, want.VolumeToAttach, e.deps.Actual); err != nil {
			e.onStartError(pair, err, "attach")
		}
	}
}

// keepsOrReleases reports whether the node has the volume for certain, or is going to release it because no Pod there uses it.
// Of a node that another controller manages that is so unless that controller tries to attach the volume, too: then each of the
// two would wait for the other.
func (e *Engine) keepsOrReleases(name corev1.UniqueVolumeName, node types.NodeName) bool {
	if !e.manages(node) {
		return e.deps.Contends == nil || !e.deps.Contends(name, node)
	}
	return e.deps.Actual.GetAttachState(name, node) == cache.AttachStateAttached || !e.deps.Desired.VolumeExists(name, node)
}

// onStartError schedules the next attempt after an operation could not be started.
func (e *Engine) onStartError(pair cache.VolumeNode, err error, operation string) {
	var backoff *operationexecutor.BackoffError
	switch {
	case errors.As(err, &backoff):
		e.wakeups.Set(pair, e.clock.Now().Add(backoff.RetryAfter))
	case errors.Is(err, operationexecutor.ErrAlreadyExists):
		e.waitForVolume(pair)
	default: // waiting does not help; the periodic pass retries
		e.logger.Error("failed to start volume operation", "operation", operation, "volume", pair.Volume, "node", pair.Node,
			"error", err)
	}
}

// trackDeletion records when a Node was deleted, or that it exists again, while Pods still use its volumes: the decision to
// detach them comes later, and must not begin the grace period then.
func (e *Engine) trackDeletion(name types.NodeName, hasVolumes bool) {
	if hasVolumes {
		e.nodeFacts(name)
	} else {
		delete(e.goneSince, name)
	}
}

// nodeFacts returns the state of the node. It records since when the Node is missing.
func (e *Engine) nodeFacts(name types.NodeName) nodeFacts {
	if e.deps.Nodes == nil {
		return nodeFacts{}
	}
	node, err := e.deps.Nodes.Get(string(name))
	if apierrors.IsNotFound(err) {
		since, ok := e.goneSince[name]
		if !ok {
			since = e.clock.Now()
			e.goneSince[name] = since
		}
		return nodeFacts{known: true, gone: true, goneFor: e.clock.Since(since)}
	}
	delete(e.goneSince, name)
	if err != nil {
		return nodeFacts{known: true}
	}
	facts := nodeFacts{known: true, ready: isReady(node), outOfService: isOutOfService(node)}
	if limit, err := MaxWaitForUnmountOf(node); err == nil {
		facts.maxWaitForUnmount = limit
	}
	return facts
}
