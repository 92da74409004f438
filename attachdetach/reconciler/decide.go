package reconciler

import (
	"time"

	"github.com/berth-dev/berth/attachdetach/cache"
)

// action is what to do with one pair.
type action int

const (
	// actionNone: the pair is as it should be, or an event that is sure to come brings it back.
	actionNone action = iota
	// actionRequeue: look again when decision.after is over.
	actionRequeue
	// actionDetach and actionAttach: start the operation.
	actionDetach
	actionAttach
	// actionReportMultiAttach: another node has the volume; say so, and look again when that changes.
	actionReportMultiAttach
)

// decision is an action and what goes with it.
type decision struct {
	action action
	after  time.Duration
	// verify asks for the safety check before a detach; reason is why it is forced, empty if it is not.
	verify bool
	reason string
}

// The reasons of forced detaches, as the metric shows them.
const (
	reasonTimeout      = "timeout"
	reasonOutOfService = "out-of-service"
)

// nodeFacts is what is known of a node.
type nodeFacts struct {
	// known is false if nobody can say anything about nodes: then the timeout alone decides.
	known bool
	// gone says that the node object does not exist, for as long as goneFor.
	gone    bool
	goneFor time.Duration
	// ready is the Ready condition being True. outOfService is the taint of that name.
	ready        bool
	outOfService bool
	// maxWaitForUnmount is the node's own limit, nil if it has none.
	maxWaitForUnmount *time.Duration
}

// unmountTimeout is how long a volume that nobody wants may stay mounted on the node if that is not ready.
func (n nodeFacts) unmountTimeout(l limits) time.Duration {
	if n.maxWaitForUnmount != nil {
		return *n.maxWaitForUnmount
	}
	return l.maxWaitForUnmount
}

// detachFacts is all that the decision on a detach depends on.
type detachFacts struct {
	mounted bool
	// elapsed is the time since the detach was first asked for.
	elapsed time.Duration
	node    nodeFacts
}

// limits is the configured times of the decision.
type limits struct {
	maxWaitForUnmount time.Duration
	nodeGoneGrace     time.Duration
	forceDisabled     bool
}

// decideDetach is called for a pair that is attached, not wanted and not being worked on.
func decideDetach(f detachFacts, l limits) decision {
	if f.node.outOfService {
		return decision{action: actionDetach, reason: reasonOutOfService}
	}
	if !f.mounted {
		return decision{action: actionDetach, verify: true}
	}
	if f.node.gone {
		// No kubelet can have it mounted for longer than the lease that the node had.
		if f.node.goneFor >= l.nodeGoneGrace {
			return decision{action: actionDetach, verify: true}
		}
		return decision{action: actionRequeue, after: l.nodeGoneGrace - f.node.goneFor}
	}
	if l.forceDisabled {
		return decision{action: actionNone}
	}
	if limit := f.node.unmountTimeout(l); f.elapsed <= limit {
		return decision{action: actionRequeue, after: limit - f.elapsed + 1}
	}
	if f.node.known && f.node.ready {
		return decision{action: actionNone} // a healthy node unmounts by itself, or has a reason not to
	}
	return decision{action: actionDetach, reason: reasonTimeout}
}

// attachFacts is all that the decision on an attach depends on.
type attachFacts struct {
	state cache.AttachState
	// shareable says that several nodes may have the volume; elsewhere that another one has or may have it.
	shareable bool
	elsewhere bool
}

// decideAttach is called for a pair that is wanted and not being worked on. An exclusive volume which another node may
// have, for all that is known, is not attached: the other node's attachment has to end first.
func decideAttach(f attachFacts) decision {
	switch {
	case f.state == cache.AttachStateAttached:
		return decision{action: actionNone}
	case !f.shareable && f.elsewhere:
		return decision{action: actionReportMultiAttach}
	}
	return decision{action: actionAttach}
}
