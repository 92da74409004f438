package reconciler

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// reconcileAll looks at everything there is. What is as it should be is not even made dirty.
func (e *Engine) reconcileAll() {
	pairs := make(map[cache.VolumeNode]struct{})
	used := make(map[types.NodeName]struct{})
	for _, attached := range e.options.Actual.GetAttachedVolumes() {
		used[attached.NodeName] = struct{}{}
		fine := attached.Confirmed && attached.DetachRequestedTime.IsZero() &&
			e.options.Desired.VolumeExists(attached.VolumeName, attached.NodeName)
		if !fine {
			pairs[cache.VolumeNode{Volume: attached.VolumeName, Node: attached.NodeName}] = struct{}{}
		}
	}
	for _, pair := range e.options.Desired.GetVolumeNodesToAttach() {
		if e.options.Actual.GetAttachState(pair.Volume, pair.Node) != cache.AttachStateAttached {
			pairs[pair] = struct{}{}
		}
	}
	for node := range e.goneSince {
		if _, ok := used[node]; !ok {
			delete(e.goneSince, node)
		}
	}
	reports := make(map[types.NodeName]struct{})
	for _, node := range e.options.Actual.GetNodesToUpdateStatusFor() {
		reports[node] = struct{}{}
	}
	e.reconcilePairs(pairs, reports)
}

// reconcileDirty looks at what changed and at what is due, until there is no more.
func (e *Engine) reconcileDirty(ctx context.Context) {
	for {
		mail := e.inbox.drain()
		due := e.wakeups.due(e.clock.Now())
		if len(mail.pairs)+len(mail.nodes)+len(mail.reports)+len(mail.written)+len(due) == 0 {
			return
		}
		for node := range mail.nodes {
			for _, attached := range e.options.Actual.GetAttachedVolumesForNode(node) {
				if e.backoffs != nil { // what failed so far may have failed because of what the node was
					e.backoffs.ForgetFailures(attached.VolumeName, operationexecutor.OperationNode(attached.VolumeSpec, node))
				}
				addTo(&mail.pairs, cache.VolumeNode{Volume: attached.VolumeName, Node: node})
			}
		}
		for _, pair := range due {
			if pair.Volume == "" {
				addTo(&mail.reports, pair.Node)
			} else {
				addTo(&mail.pairs, pair)
			}
		}
		for _, result := range mail.written {
			e.onStatusWritten(result)
		}
		e.reconcilePairs(e.withWaiting(mail.pairs), mail.reports)
		if ctx.Err() != nil {
			return
		}
	}
}

// withWaiting adds the pairs that wait for something to happen to the volumes of the given ones.
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

// reconcilePairs decides on the given pairs: detaches first, then the lists of nodes, then attaches.
func (e *Engine) reconcilePairs(pairs map[cache.VolumeNode]struct{}, reports map[types.NodeName]struct{}) {
	var wanted []cache.VolumeToAttach
	for pair := range pairs {
		e.clearWait(pair)
		if want, ok := e.options.Desired.GetVolumeToAttach(pair.Volume, pair.Node); ok {
			wanted = append(wanted, want)
			continue
		}
		if attached, ok := e.options.Actual.GetAttachedVolume(pair.Volume, pair.Node); ok {
			e.reconcileDetach(pair, attached)
		}
	}
	for node := range reports {
		if !e.manages(node) {
			continue
		}
		if until := e.statusBackoffs[node].until; until.After(e.clock.Now()) {
			e.wakeups.set(cache.VolumeNode{Node: node}, until)
			continue
		}
		e.statuses.write(e.operationCtx, node)
	}
	for _, want := range wanted {
		e.reconcileAttach(cache.VolumeNode{Volume: want.VolumeName, Node: want.NodeName}, want)
	}
}

// clearWait forgets what the pair was waiting for, because it is looked at now.
func (e *Engine) clearWait(pair cache.VolumeNode) {
	e.wakeups.drop(pair)
	if nodes := e.waiting[pair.Volume]; nodes != nil {
		delete(nodes, pair.Node)
		if len(nodes) == 0 {
			delete(e.waiting, pair.Volume)
		}
	}
}

// waitForVolume has the pair looked at when something happens to its volume.
func (e *Engine) waitForVolume(pair cache.VolumeNode) {
	nodes := e.waiting[pair.Volume]
	addTo(&nodes, pair.Node)
	e.waiting[pair.Volume] = nodes
}

// blocked reports whether the operation cannot start now, and sees to it that the pair is looked at when it can.
func (e *Engine) blocked(pair cache.VolumeNode, keyNode types.NodeName, operation string) bool {
	if e.options.Executor.IsOperationPending(pair.Volume, keyNode) {
		e.waitForVolume(pair)
		return true
	}
	if e.options.Executor.IsOperationSafeToRetry(pair.Volume, keyNode, operation) {
		return false
	}
	if e.backoffs != nil {
		e.wakeups.set(pair, e.clock.Now().Add(e.backoffs.RetryAfter(pair.Volume, keyNode, operation)))
	}
	return true
}

func (e *Engine) manages(node types.NodeName) bool {
	return e.options.Manages == nil || e.options.Manages(node)
}

// reconcileDetach is for a pair that is attached but not wanted.
func (e *Engine) reconcileDetach(pair cache.VolumeNode, attached cache.AttachedVolume) {
	if _, ok := e.detaching[pair]; ok || !e.manages(pair.Node) {
		return // what comes of it, or of another controller's work, comes back
	}
	keyNode := operationexecutor.OperationNode(attached.VolumeSpec, pair.Node)
	if e.blocked(pair, keyNode, operationexecutor.OperationDetach) {
		return
	}
	// An operation may have ended since the pair was read, so it is read again now that none is pending.
	attached, ok := e.options.Actual.GetAttachedVolume(pair.Volume, pair.Node)
	if !ok {
		return
	}
	elapsed, err := e.options.Actual.SetDetachRequestTime(pair.Volume, pair.Node)
	if err != nil {
		return // it has gone meanwhile
	}
	facts := detachFacts{mounted: attached.MountedByNode, elapsed: elapsed, node: e.nodeFacts(pair.Node)}
	decided := decideDetach(facts, e.limits)
	switch decided.action {
	case actionRequeue:
		e.wakeups.set(pair, e.clock.Now().Add(decided.after))
		return
	case actionDetach:
	default:
		return
	}
	if until := e.statusBackoffs[pair.Node].until; until.After(e.clock.Now()) {
		e.wakeups.set(pair, until)
		return
	}
	// That it is not on the list is as good as taking it off; the list is written in any case.
	reported := e.options.Actual.RemoveVolumeFromReportAsAttached(pair.Volume, pair.Node) == nil
	e.detaching[pair] = pendingDetach{decision: decided, wasReported: reported}
	e.statuses.write(e.operationCtx, pair.Node, pair)
}

// onStatusWritten goes on with the detaches that waited for the node's list to be written.
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
	e.wakeups.set(cache.VolumeNode{Node: result.node}, until)
	e.logger.Warn("cannot write the status of the node; will retry", "node", result.node, "after", delay, "error", result.err)
	for _, pair := range result.pairs {
		e.cancelDetach(pair)
		e.wakeups.set(pair, until)
	}
}

// cancelDetach takes back what reconcileDetach did to the pair.
func (e *Engine) cancelDetach(pair cache.VolumeNode) {
	if e.detaching[pair].wasReported {
		e.options.Actual.AddVolumeToReportAsAttached(pair.Volume, pair.Node)
	}
	delete(e.detaching, pair)
}

// startDetach detaches the pair, which is off its node's list, unless it is wanted again.
func (e *Engine) startDetach(pair cache.VolumeNode) {
	plan, ok := e.detaching[pair]
	if !ok {
		return
	}
	attached, ok := e.options.Actual.GetAttachedVolume(pair.Volume, pair.Node)
	if !ok {
		delete(e.detaching, pair)
		return
	}
	if e.options.Desired.VolumeExists(pair.Volume, pair.Node) {
		e.cancelDetach(pair)
		e.inbox.addPair(pair)
		return
	}
	err := e.options.Executor.DetachVolume(e.operationCtx, attached.AttachedVolume, plan.verify, e.options.Actual)
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

// reconcileAttach is for a pair that is wanted.
func (e *Engine) reconcileAttach(pair cache.VolumeNode, want cache.VolumeToAttach) {
	if _, ok := e.detaching[pair]; ok {
		return // startDetach sees that it is wanted
	}
	shareable := operationexecutor.IsMultiAttachAllowed(want.VolumeSpec)
	keyNode := operationexecutor.OperationNode(want.VolumeSpec, pair.Node)
	if e.options.Executor.IsOperationPending(pair.Volume, keyNode) {
		e.waitForVolume(pair)
		return
	}
	facts := attachFacts{state: e.options.Actual.GetAttachState(pair.Volume, pair.Node), shareable: shareable}
	var others []types.NodeName
	if !shareable && facts.state != cache.AttachStateAttached {
		for _, node := range e.options.Actual.GetNodesForPossiblyAttachedVolume(pair.Volume) {
			if node != pair.Node {
				others = append(others, node)
			}
		}
		facts.elsewhere = len(others) > 0
	}
	switch decideAttach(facts).action {
	case actionNone:
		e.options.Actual.ResetDetachRequestTime(pair.Volume, pair.Node)
	case actionReportMultiAttach:
		e.waitForVolume(pair)
		e.reportMultiAttach(pair, want, others)
	case actionAttach:
		e.options.Actual.ResetDetachRequestTime(pair.Volume, pair.Node)
		if err := e.options.Executor.AttachVolume(e.operationCtx, want.VolumeToAttach, e.options.Actual); err != nil {
			e.onStartError(pair, err, "attach")
		}
	}
}

// onStartError sees to it that the pair is looked at again after an operation could not be started.
func (e *Engine) onStartError(pair cache.VolumeNode, err error, operation string) {
	var backoff *operationexecutor.BackoffError
	switch {
	case errors.As(err, &backoff):
		e.wakeups.set(pair, e.clock.Now().Add(backoff.RetryAfter))
	case errors.Is(err, operationexecutor.ErrAlreadyExists):
		e.waitForVolume(pair)
	default: // nothing that waiting cures; the pass over everything tries again
		e.logger.Error("cannot start to "+operation+" volume", "volume", pair.Volume, "node", pair.Node, "error", err)
	}
}

// nodeFacts reads what is known of the node.
func (e *Engine) nodeFacts(name types.NodeName) nodeFacts {
	if e.options.Nodes == nil {
		return nodeFacts{}
	}
	node, err := e.options.Nodes.Get(string(name))
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
