package pleg

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

// observation is one thing that an event tells: that a sandbox or container has come at least so far, or is gone.
type observation struct {
	id    string
	state int32
	gone  bool
}

// unknownChange is the fact that a listing leaves of a Pod that it found changed: only a whole read is an answer to it.
var unknownChange = observation{}

// observationsOf are what an event tells. States of a sandbox and of a container only grow, and those that come with an event
// may be older than what it is about.
func observationsOf(event *runtimeapi.ContainerEventResponse) []observation {
	var facts []observation
	id, box := event.ContainerId, event.PodSandboxStatus
	sandbox := box.GetId() == id
	switch event.ContainerEventType {
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		facts = append(facts, observation{id: id, gone: true})
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		last := int32(runtimeapi.ContainerState_CONTAINER_EXITED) + containerOffset
		if sandbox {
			last = int32(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		}
		facts = append(facts, observation{id: id, state: last})
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		if !sandbox {
			facts = append(facts, observation{id: id, state: int32(runtimeapi.ContainerState_CONTAINER_RUNNING) + containerOffset})
		}
	default:
		facts = append(facts, observation{id: id})
	}
	if box != nil {
		facts = append(facts, observation{id: box.Id, state: int32(box.State)})
	}
	for _, c := range event.ContainersStatuses {
		facts = append(facts, observation{id: c.Id, state: int32(c.State) + containerOffset})
	}
	return facts
}

// covers reports whether all facts are in what was seen of a Pod.
func (f fingerprint) covers(facts []observation) bool {
	for _, told := range facts {
		state, there := f[told.id]
		if told.gone == there || !told.gone && state < told.state {
			return false
		}
	}
	return true
}

// alreadySeen reports whether an event says nothing that was not read already: most tell of what a worker has just done and
// looked at itself, and looking again would cost as much as the first time. What happens after the event has an event
// of its own. What an event says beyond is noted until the Pod is read.
func (w *Watcher) alreadySeen(uid types.UID, event *runtimeapi.ContainerEventResponse) bool {
	facts := observationsOf(event)
	w.mu.Lock()
	defer w.mu.Unlock()
	if print := w.fingerprints[uid]; print != nil && print.covers(facts) {
		return true
	}
	if uid != "" {
		w.unread[uid] = append(w.unread[uid], facts...)
		w.markTouched(uid, false)
	}
	return false
}

// Started are a sandbox, or a container in it, that the caller has just brought up. Container may be empty.
type Started struct{ Sandbox, Container string }

// ReadMade asks the runtime for what the caller has made since it read the Pod, and adds it to that. It does so with one
// call where Read takes four. Complete reports whether no event and no listing has told of anything beyond; if one has,
// a Read has to follow. It is for the Pod's one reader, and what it had read stays as it is.
func (w *Watcher) ReadStarted(ctx context.Context, had *container.PodStatus, made Started) (
	status *container.PodStatus, complete bool, err error,
) {
	var boxes []*runtimeapi.PodSandboxStatus
	var ctrs []*runtimeapi.ContainerStatus
	print := fingerprint{}
	if made.Container != "" {
		resp, err := w.deps.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: made.Container})
		if err != nil {
			return nil, false, fmt.Errorf("read container %s of pod %s: %w", made.Container, had.UID, err)
		}
		w.restoreExitCode(ctx, resp.Status)
		ctrs, print[made.Container] = append(ctrs, resp.Status), int32(resp.Status.GetState())+containerOffset
	} else {
		resp, err := w.deps.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: made.Sandbox})
		if err != nil {
			return nil, false, fmt.Errorf("read pod %s: %w", had.UID, &SandboxError{made.Sandbox, err})
		}
		boxes, print[made.Sandbox] = append(boxes, resp.Status), int32(resp.Status.GetState())
	}
	out := container.FromCRI(had.UID, boxes, ctrs)
	for _, c := range out.Containers {
		c.SandboxID = made.Sandbox
	}
	return had.With(out), w.addToFingerprint(had.UID, print), nil
}

// addToFingerprint adds to what was last seen of a Pod, and reports whether that is all that was told of it.
func (w *Watcher) addToFingerprint(uid types.UID, by fingerprint) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.markTouched(uid, true)
	print := maps.Clone(w.fingerprints[uid])
	if print == nil {
		print = fingerprint{}
	}
	maps.Copy(print, by)
	w.fingerprints[uid] = print
	if !print.covers(w.unread[uid]) {
		return false
	}
	delete(w.unread, uid)
	delete(w.changed, uid) // nobody needs to be told of it any more
	return true
}

// HoldsNothing reports whether the runtime is known to hold nothing of a Pod: everything was listed since its events
// are followed, and neither that listing nor an event has told of the Pod, nor was anything read of it. That is so only
// if the caller has not yet asked the runtime for anything of the Pod: of what it makes, the events may be on their way.
func (w *Watcher) KnownEmpty(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, dirty := w.changed[uid]
	return w.complete && !dirty && !w.relistNeeded && w.fingerprints[uid] == nil && len(w.unread[uid]) == 0
}

// dropUnread drops what was told of a Pod: it is about to be read.
func (w *Watcher) dropUnread(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.unread, uid)
}
