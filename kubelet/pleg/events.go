package pleg

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

// observation is one thing that an event reports: a sandbox or container has at least this state, or is gone.
type observation struct {
	id    string
	state int32
	gone  bool
}

// unknownChange is the observation of a relist that found a Pod changed: only a full read covers it.
var unknownChange = observation{}

// observationsOf returns what an event reports. States of a sandbox and of a container only grow, and those that come
// with an event may be older than its subject.
func observationsOf(event *runtimeapi.ContainerEventResponse) []observation {
	var observations []observation
	id, box := event.ContainerId, event.PodSandboxStatus
	sandbox := box.GetId() == id
	switch event.ContainerEventType {
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		observations = append(observations, observation{id: id, gone: true})
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		last := int32(runtimeapi.ContainerState_CONTAINER_EXITED) + containerOffset
		if sandbox {
			last = int32(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		}
		observations = append(observations, observation{id: id, state: last})
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		if !sandbox {
			observations = append(observations, observation{id: id, state: int32(runtimeapi.ContainerState_CONTAINER_RUNNING) + containerOffset})
		}
	default:
		observations = append(observations, observation{id: id})
	}
	if box != nil {
		observations = append(observations, observation{id: box.Id, state: int32(box.State)})
	}
	for _, c := range event.ContainersStatuses {
		observations = append(observations, observation{id: c.Id, state: int32(c.State) + containerOffset})
	}
	return observations
}

// covers reports whether all observations are in the known state of a Pod.
func (f fingerprint) covers(observations []observation) bool {
	for _, seen := range observations {
		state, known := f[seen.id]
		if seen.gone == known || !seen.gone && state < seen.state {
			return false
		}
	}
	return true
}

// alreadySeen reports whether an event contains nothing that was not read already. Most events report what a worker has
// just done and read itself, and another read would cost as much as the first one. What an event reports beyond that is
// kept until the Pod is read.
func (w *Watcher) alreadySeen(uid types.UID, event *runtimeapi.ContainerEventResponse) bool {
	observations := observationsOf(event)
	w.mu.Lock()
	defer w.mu.Unlock()
	if print := w.fingerprints[uid]; print != nil && print.covers(observations) {
		return true
	}
	if uid != "" {
		w.unread[uid] = append(w.unread[uid], observations...)
		w.markTouched(uid, false)
	}
	return false
}

// Started is a sandbox, or a container in it, that the caller has just started. Container may be empty.
type Started struct{ Sandbox, Container string }

// ReadStarted reads what the caller has started since it read the Pod, and adds it to that state, with one call where
// Read makes four. The second result is false if an event or a relist has reported anything else; then a Read must
// follow. Only the Pod's one reader may call it. The state it had stays unchanged.
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

// addToFingerprint adds to the known state of a Pod, and reports whether that covers all observations.
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
	delete(w.changed, uid) // its reader knows all of it
	return true
}

// KnownEmpty reports whether the runtime is known to have nothing of a Pod: everything was listed since its events
// arrive, and neither that list, nor an event, nor a read has shown anything of the Pod. That holds only if the caller
// has not started anything of the Pod: those events may still arrive.
func (w *Watcher) KnownEmpty(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, dirty := w.changed[uid]
	return w.complete && !dirty && !w.relistNeeded && w.fingerprints[uid] == nil && len(w.unread[uid]) == 0
}

// dropUnread drops the observations of a Pod that is about to be read.
func (w *Watcher) dropUnread(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.unread, uid)
}
