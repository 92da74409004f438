package reconciler

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// passOverAll looks at everything there is. What is as it should be is not even made dirty.
func (e *Engine) passOverAll() {
	pairs := make(map[cache.VolumeNode]struct{})
	used := make(map[types.NodeName]struct{})
	for _, attached := range e.o.Actual.GetAttachedVolumes() {
		used[attached.NodeName] = struct{}{}
		fine := attached.Confirmed && attached.DetachRequestedTime.IsZero() &&
			e.o.Desired.VolumeExists(attached.VolumeName, attached.NodeName)
		if !fine {
			pairs[cache.VolumeNode{Volume: attached.VolumeName, Node: attached.NodeName}] = struct{}{}
		}
	}
	for _, pair := range e.o.Desired.GetVolumeNodesToAttach() {
		if e.o.Actual.GetAttachState(pair.Volume, pair.Node) != cache.AttachStateAttached {
			pairs[pair] = struct{}{}
		}
	}
	for node := range e.gone {
		if _, ok := used[node]; !ok {
			delete(e.gone, node)
		}
	}
	reports := make(map[types.NodeName]struct{})
	for _, node := range e.o.Actual.GetNodesToUpdateStatusFor() {
		reports[node] = struct{}{}
	}
	e.pass(pairs, reports)
}

// passOverChanges looks at what changed and at what is due, until there is no more.
func (e *Engine) passOverChanges(ctx context.Context) {
	for {
		mail := e.inbox.take()
		due := e.times.due(e.clock.Now())
		if len(mail.pairs)+len(mail.nodes)+len(mail.reports)+len(mail.flushed)+len(due) == 0 {
			return
		}
		for node := range mail.nodes {
			for _, attached := range e.o.Actual.GetAttachedVolumesForNode(node) {
				if e.pacer != nil { // what failed so far may have failed because of what the node was
					e.pacer.ForgetFailures(attached.VolumeName, operationexecutor.OperationNode(attached.VolumeSpec, node))
				}
				add(&mail.pairs, cache.VolumeNode{Volume: attached.VolumeName, Node: node})
			}
		}
		for _, pair := range due {
			if pair.Volume == "" {
				add(&mail.reports, pair.Node)
			} else {
				add(&mail.pairs, pair)
			}
		}
		for _, result := range mail.flushed {
			e.afterWrite(result)
		}
		e.pass(e.withWaiting(mail.pairs), mail.reports)
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

// pass decides on the given pairs: detaches first, then the lists of nodes, then attaches.
func (e *Engine) pass(pairs map[cache.VolumeNode]struct{}, reports map[types.NodeName]struct{}) {
	var wanted []cache.VolumeToAttach
	for pair := range pairs {
		e.settle(pair)
		if want, ok := e.o.Desired.GetVolumeToAttach(pair.Volume, pair.Node); ok {
			wanted = append(wanted, want)
			continue
		}
		if attached, ok := e.o.Actual.GetAttachedVolume(pair.Volume, pair.Node); ok {
			e.considerDetach(pair, attached)
		}
	}
	for node := range reports {
		if !e.manages(node) {
			continue
		}
		if until := e.paused[node].until; until.After(e.clock.Now()) {
			e.times.set(cache.VolumeNode{Node: node}, until)
			continue
		}
		e.flusher.write(e.opCtx, node)
	}
	for _, want := range wanted {
		e.considerAttach(cache.VolumeNode{Volume: want.VolumeName, Node: want.NodeName}, want)
	}
}

// settle forgets what the pair was waiting for, because it is looked at now.
func (e *Engine) settle(pair cache.VolumeNode) {
	e.times.drop(pair)
	if nodes := e.waiting[pair.Volume]; nodes != nil {
		delete(nodes, pair.Node)
		if len(nodes) == 0 {
			delete(e.waiting, pair.Volume)
		}
	}
}

// await has the pair looked at when something happens to its volume.
func (e *Engine) await(pair cache.VolumeNode) {
	nodes := e.waiting[pair.Volume]
	add(&nodes, pair.Node)
	e.waiting[pair.Volume] = nodes
}

// blocked reports whether the operation cannot start now, and sees to it that the pair is looked at when it can.
func (e *Engine) blocked(pair cache.VolumeNode, keyNode types.NodeName, operation string) bool {
	if e.o.Executor.IsOperationPending(pair.Volume, keyNode) {
		e.await(pair)
		return true
	}
	if e.o.Executor.IsOperationSafeToRetry(pair.Volume, keyNode, operation) {
		return false
	}
	if e.pacer != nil {
		e.times.set(pair, e.clock.Now().Add(e.pacer.RetryAfter(pair.Volume, keyNode, operation)))
	}
	return true
}

func (e *Engine) manages(node types.NodeName) bool { return e.o.Manages == nil || e.o.Manages(node) }

// considerDetach is for a pair that is attached but not wanted.
func (e *Engine) considerDetach(pair cache.VolumeNode, attached cache.AttachedVolume) {
	if _, ok := e.leaving[pair]; ok || !e.manages(pair.Node) {
		return // what comes of it, or of another controller's work, comes back
	}
	keyNode := operationexecutor.OperationNode(attached.VolumeSpec, pair.Node)
	if e.blocked(pair, keyNode, operationexecutor.OperationDetach) {
		return
	}
	// An operation may have ended since the pair was read, so it is read again now that none is pending.
	attached, ok := e.o.Actual.GetAttachedVolume(pair.Volume, pair.Node)
	if !ok {
		return
	}
	elapsed, err := e.o.Actual.SetDetachRequestTime(pair.Volume, pair.Node)
	if err != nil {
		return // it has gone meanwhile
	}
	facts := detachFacts{mounted: attached.MountedByNode, elapsed: elapsed, node: e.nodeFacts(pair.Node)}
	decided := decideDetach(facts, e.limits)
	switch decided.do {
	case doWait:
		e.times.set(pair, e.clock.Now().Add(decided.after))
		return
	case doDetach:
	default:
		return
	}
	if until := e.paused[pair.Node].until; until.After(e.clock.Now()) {
		e.times.set(pair, until)
		return
	}
	// That it is not on the list is as good as taking it off; the list is written in any case.
	reported := e.o.Actual.RemoveVolumeFromReportAsAttached(pair.Volume, pair.Node) == nil
	e.leaving[pair] = leave{decision: decided, wasReported: reported}
	e.flusher.write(e.opCtx, pair.Node, pair)
}

// afterWrite goes on with the detaches that waited for the node's list to be written.
func (e *Engine) afterWrite(result flushed) {
	if result.err == nil {
		delete(e.paused, result.node)
		for _, pair := range result.pairs {
			e.startDetach(pair)
		}
		return
	}
	delay := min(max(2*e.paused[result.node].delay, statusRetry), maxStatusRetry)
	until := e.clock.Now().Add(delay)
	e.paused[result.node] = pause{delay: delay, until: until}
	e.times.set(cache.VolumeNode{Node: result.node}, until)
	e.log.Warn("cannot write the status of the node; will retry", "node", result.node, "after", delay, "error", result.err)
	for _, pair := range result.pairs {
		e.stay(pair)
		e.times.set(pair, until)
	}
}

// stay takes back what considerDetach did to the pair.
func (e *Engine) stay(pair cache.VolumeNode) {
	if e.leaving[pair].wasReported {
		e.o.Actual.AddVolumeToReportAsAttached(pair.Volume, pair.Node)
	}
	delete(e.leaving, pair)
}

// startDetach detaches the pair, which is off its node's list, unless it is wanted again.
func (e *Engine) startDetach(pair cache.VolumeNode) {
	plan, ok := e.leaving[pair]
	if !ok {
		return
	}
	attached, ok := e.o.Actual.GetAttachedVolume(pair.Volume, pair.Node)
	if !ok {
		delete(e.leaving, pair)
		return
	}
	if e.o.Desired.VolumeExists(pair.Volume, pair.Node) {
		e.stay(pair)
		e.inbox.pair(pair)
		return
	}
	err := e.o.Executor.DetachVolume(e.opCtx, attached.AttachedVolume, plan.verify, e.o.Actual)
	if err == nil {
		delete(e.leaving, pair)
		if plan.reason != "" {
			e.forced(pair, attached, plan.reason)
		}
		return
	}
	e.stay(pair)
	e.afterRefusal(pair, err, "detach")
}

// considerAttach is for a pair that is wanted.
func (e *Engine) considerAttach(pair cache.VolumeNode, want cache.VolumeToAttach) {
	if _, ok := e.leaving[pair]; ok {
		return // startDetach sees that it is wanted
	}
	shareable := operationexecutor.IsMultiAttachAllowed(want.VolumeSpec)
	keyNode := operationexecutor.OperationNode(want.VolumeSpec, pair.Node)
	if e.o.Executor.IsOperationPending(pair.Volume, keyNode) {
		e.await(pair)
		return
	}
	facts := attachFacts{state: e.o.Actual.GetAttachState(pair.Volume, pair.Node), shareable: shareable}
	var others []types.NodeName
	if !shareable && facts.state != cache.AttachStateAttached {
		for _, node := range e.o.Actual.GetNodesForPossiblyAttachedVolume(pair.Volume) {
			if node != pair.Node {
				others = append(others, node)
			}
		}
		facts.elsewhere = len(others) > 0
	}
	switch decideAttach(facts).do {
	case doNothing:
		e.o.Actual.ResetDetachRequestTime(pair.Volume, pair.Node)
	case doReport:
		e.await(pair)
		e.reportMultiAttach(pair, want, others)
	case doAttach:
		e.o.Actual.ResetDetachRequestTime(pair.Volume, pair.Node)
		if err := e.o.Executor.AttachVolume(e.opCtx, want.VolumeToAttach, e.o.Actual); err != nil {
			e.afterRefusal(pair, err, "attach")
		}
	}
}

// afterRefusal sees to it that the pair is looked at again after an operation could not be started.
func (e *Engine) afterRefusal(pair cache.VolumeNode, err error, operation string) {
	var backoff *operationexecutor.BackoffError
	switch {
	case errors.As(err, &backoff):
		e.times.set(pair, e.clock.Now().Add(backoff.RetryAfter))
	case errors.Is(err, operationexecutor.ErrAlreadyExists):
		e.await(pair)
	default: // nothing that waiting cures; the pass over everything tries again
		e.log.Error("cannot start to "+operation+" volume", "volume", pair.Volume, "node", pair.Node, "error", err)
	}
}

// nodeFacts reads what is known of the node.
func (e *Engine) nodeFacts(name types.NodeName) nodeFacts {
	if e.o.Nodes == nil {
		return nodeFacts{}
	}
	node, err := e.o.Nodes.Get(string(name))
	if apierrors.IsNotFound(err) {
		since, ok := e.gone[name]
		if !ok {
			since = e.clock.Now()
			e.gone[name] = since
		}
		return nodeFacts{known: true, gone: true, goneFor: e.clock.Since(since)}
	}
	delete(e.gone, name)
	if err != nil {
		return nodeFacts{known: true}
	}
	facts := nodeFacts{known: true, ready: isReady(node), outOfService: isOutOfService(node)}
	if limit, err := MaxWaitForUnmountOf(node); err == nil {
		facts.maxWaitForUnmount = limit
	}
	return facts
}
