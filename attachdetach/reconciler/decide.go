package reconciler

import (
	"time"

	"github.com/berth-dev/berth/attachdetach/cache"
)

// action is what the reconciler does with one pair.
type action int

const (
	// actionNone: the pair is in its desired state, or a later event makes it dirty again.
	actionNone action = iota
	// actionRequeue: reconcile the pair again after decision.after.
	actionRequeue
	// actionDetach and actionAttach: start the operation.
	actionDetach
	actionAttach
	// actionReportMultiAttach: another node has the volume; report that, and reconcile again when it changes.
	actionReportMultiAttach
)

// decision is an action and its parameters.
type decision struct {
	action action
	after  time.Duration
	// verify requires the safety check before a detach; reason is why the detach is forced, empty if it is not.
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
	// known is false if the reconciler has no lister of nodes: then the timeout alone decides.
	known bool
	// gone is set if the Node does not exist; goneFor is since how long.
	gone    bool
	goneFor time.Duration
	// ready is the Ready condition being True. outOfService is the taint of that name.
	ready        bool
	outOfService bool
	// maxWaitForUnmount is the node's own limit, nil if it has none.
	maxWaitForUnmount *time.Duration
}

// unmountTimeout is how long a volume that no Pod uses may stay mounted on the node if the node is not ready.
func (n nodeFacts) unmountTimeout(l limits) time.Duration {
	if n.maxWaitForUnmount != nil {
		return *n.maxWaitForUnmount
	}
	return l.maxWaitForUnmount
}

// detachFacts is the input of decideDetach.
type detachFacts struct {
	mounted bool
	// elapsed is the time since the detach was first requested.
	elapsed time.Duration
	node    nodeFacts
}

// limits is the configuration of decideDetach.
type limits struct {
	maxWaitForUnmount time.Duration
	nodeGoneGrace     time.Duration
	forceDisabled     bool
}

// decideDetach decides for a pair that is attached, not desired, and has no pending operation.
func decideDetach(f detachFacts, l limits) decision {
	if f.node.outOfService {
		return decision{action: actionDetach, reason: reasonOutOfService}
	}
	if !f.mounted {
		return decision{action: actionDetach, verify: true}
	}
	if f.node.gone {
		// No kubelet has it mounted after the node's lease has ended.
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

// attachFacts is the input of decideAttach.
type attachFacts struct {
	state cache.AttachState
	// shareable is set if several nodes may have the volume; elsewhere if another node has or may have it.
	shareable bool
	elsewhere bool
	// undecided is set if no other node has the volume for certain, and none that may have it is going to release it.
	undecided bool
}

// decideAttach decides for a pair that is desired and has no pending operation. An exclusive volume that another node has
// or may have is not attached: the other attachment has to end first. But of several nodes that may have it, and on all of
// which Pods use it, none would ever release it: they try one after the other, and the storage decides which one has it.
func decideAttach(f attachFacts) decision {
	switch {
	case f.state == cache.AttachStateAttached:
		return decision{action: actionNone}
	case !f.shareable && f.elsewhere && !(f.undecided && f.state == cache.AttachStateUncertain):
		return decision{action: actionReportMultiAttach}
	}
	return decision{action: actionAttach}
}
