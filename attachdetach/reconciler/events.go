package reconciler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// ReasonForcedDetach is the reason of the events for the Node and the waiting Pods after a forced detach.
const ReasonForcedDetach = "ForcedDetachVolume"

// AnnMaxWaitForUnmount is the annotation of a Node that gives it a limit of its own in place of
// Options.MaxWaitForUnmount: a duration such as "90s". An invalid one is ignored; DisableForceDetachOnTimeout overrides it.
const AnnMaxWaitForUnmount = "attachdetach.berth.dev/max-wait-for-unmount"

// releaseGrace is how long a volume may stay on a node where no Pod uses it any more before the Pods that wait for it on
// another node get an event. A kubelet reports at least every 10 s what it has unmounted, so a usual move causes no event.
const releaseGrace = 10 * time.Second

// MaxWaitForUnmountOf returns the Node's own limit, nil if it has none, or an error if the annotation is invalid.
func MaxWaitForUnmountOf(node *corev1.Node) (*time.Duration, error) {
	text, ok := node.Annotations[AnnMaxWaitForUnmount]
	if !ok {
		return nil, nil
	}
	limit, err := time.ParseDuration(text)
	if err == nil && limit <= 0 {
		err = errors.New("it must be more than 0")
	}
	if err != nil {
		return nil, fmt.Errorf("node %q: annotation %s is %q, want a duration such as 90s: %w",
			node.Name, AnnMaxWaitForUnmount, text, err)
	}
	return &limit, nil
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func isOutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}

// reportMultiAttach records why the Pods of the pair wait: in the timeline each time that the reason changes, and in one
// event for each Pod, once the other node has had releaseGrace to release the volume.
func (e *Engine) reportMultiAttach(pair cache.VolumeNode, want cache.VolumeToAttach, others []types.NodeName) {
	name := want.VolumeSpec.DirName()
	if e.deps.Timeline != nil {
		err := timeline.WithReason(errors.New(e.describeHolders(want.VolumeName, others)), "VolumeHeld", "")
		for _, pod := range want.ScheduledPods {
			span := e.deps.Timeline.Mark(timeline.PodRef(pod), "attachdetach", timeline.StageAttach, name, err)
			if len(others) > 0 {
				span.SetCause(timeline.Ref{Kind: "Node", Name: string(others[0])})
			}
		}
	}
	if len(want.PodsToNotify) == 0 {
		return
	}
	if until := e.releaseDeadline(want.VolumeName, others); until.After(e.clock.Now()) {
		e.wakeups.Set(pair, until)
		return
	}
	users := e.deps.Desired.GetVolumePodsOnNodes(others, want.VolumeName)
	for _, pod := range want.PodsToNotify {
		if e.deps.Recorder != nil {
			e.deps.Recorder.Event(pod, corev1.EventTypeWarning, operationexecutor.ReasonFailedAttach,
				multiAttachText(name, pod.Namespace, users))
		}
	}
	e.deps.Desired.MarkPodsNotified(want.VolumeName, want.NodeName, want.PodsToNotify)
	e.logger.Info("volume is attached elsewhere", "volume", want.VolumeName, "node", want.NodeName, "others", others)
}

// releaseDeadline is the end of the grace period of the nodes that still have the volume; zero if a Pod on one of them uses
// it.
func (e *Engine) releaseDeadline(name corev1.UniqueVolumeName, nodes []types.NodeName) time.Time {
	var until time.Time
	for _, node := range nodes {
		at, ok := e.deps.Actual.GetAttachedVolume(name, node)
		if !ok {
			continue
		}
		if e.deps.Desired.VolumeExists(name, node) || at.DetachRequestedTime.IsZero() {
			return time.Time{}
		}
		if end := at.DetachRequestedTime.Add(releaseGrace); end.After(until) {
			until = end
		}
	}
	return until
}

// multiAttachText is the event for a Pod of the namespace. It never names Pods of another one.
func multiAttachText(volumeName, namespace string, users []*corev1.Pod) string {
	prefix := fmt.Sprintf("Multi-Attach error for volume %q ", volumeName)
	var here []string
	for _, user := range users {
		if user.Namespace == namespace {
			here = append(here, user.Name)
		}
	}
	elsewhere := len(users) - len(here)
	switch {
	case len(users) == 0:
		return prefix + "Volume is already exclusively attached to one node and can't be attached to another"
	case len(here) == 0:
		return prefix + fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", elsewhere)
	case elsewhere == 0:
		return prefix + "Volume is already used by pod(s) " + strings.Join(here, ", ")
	}
	return prefix + fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces",
		strings.Join(here, ", "), elsewhere)
}

// describeHolders returns which nodes have the volume, since when, and what its release waits for.
func (e *Engine) describeHolders(name corev1.UniqueVolumeName, nodes []types.NodeName) string {
	parts := make([]string, 0, len(nodes))
	for _, node := range nodes {
		at, ok := e.deps.Actual.GetAttachedVolume(name, node)
		if !ok {
			continue
		}
		state := "is"
		if !at.Confirmed {
			state = "may be"
		}
		text := fmt.Sprintf("volume %s attached to node %q since %s, ", state, node, at.Since.UTC().Format("15:04:05"))
		parts = append(parts, text+e.describeRelease(at, e.deps.Desired.VolumeExists(name, node)))
	}
	return strings.Join(parts, "; ")
}

// describeRelease returns what has to happen before the volume is released.
func (e *Engine) describeRelease(at cache.AttachedVolume, wanted bool) string {
	switch node := e.nodeFacts(at.NodeName); {
	case !e.manages(at.NodeName):
		return "which another controller manages: it is released when that controller detaches it"
	case wanted && node.known && !node.ready && !node.gone:
		return "and pods on that node use it: it is released when they end, but the node is not ready: if it is lost for " +
			"good, taint it with " + corev1.TaintNodeOutOfService
	case wanted:
		return "and pods on that node use it: it is released when they end"
	case at.MountedByNode && e.config.DisableForceDetachOnTimeout:
		return "and mounted there: it is released when the node has unmounted it; if the node is lost for good, " +
			"taint it with " + corev1.TaintNodeOutOfService
	case at.MountedByNode:
		requestedAt := at.DetachRequestedTime
		if requestedAt.IsZero() {
			requestedAt = e.clock.Now()
		}
		return fmt.Sprintf("and mounted there: it is released when the node has unmounted it, or at %s if the node is "+
			"not ready; if the node is lost for good, taint it with %s",
			requestedAt.Add(node.unmountTimeout(e.limits)).UTC().Format("15:04:05"), corev1.TaintNodeOutOfService)
	}
	return "and is being detached"
}

// recordForcedDetach counts and reports a detach that did not wait until it was safe.
func (e *Engine) recordForcedDetach(pair cache.VolumeNode, attached cache.AttachedVolume, reason string) {
	e.deps.OnForcedDetach(reason)
	assumed := fmt.Sprintf("the node has been unable to unmount it for longer than %v and is not ready, so it is assumed "+
		"to be down", e.nodeFacts(pair.Node).unmountTimeout(e.limits))
	if reason == reasonOutOfService {
		assumed = "the node is tainted with " + corev1.TaintNodeOutOfService + ", so it is assumed to be down"
	}
	name := string(pair.Volume)
	if attached.VolumeSpec != nil {
		name = attached.VolumeSpec.DirName()
	}
	text := fmt.Sprintf("Detaching volume %q from node %q without waiting for it to be unmounted: %s. "+
		"If it still runs, data may be lost", name, pair.Node, assumed)
	e.logger.Warn("forced detach", "volume", pair.Volume, "node", pair.Node, "reason", reason)
	if e.deps.Recorder == nil {
		return
	}
	node := &corev1.ObjectReference{Kind: "Node", Name: string(pair.Node), UID: types.UID(pair.Node)}
	e.deps.Recorder.Event(node, corev1.EventTypeWarning, ReasonForcedDetach, text)
	var waiting []types.NodeName
	for other := range e.waiting[pair.Volume] {
		waiting = append(waiting, other)
	}
	for _, pod := range e.deps.Desired.GetVolumePodsOnNodes(waiting, pair.Volume) {
		e.deps.Recorder.Event(pod, corev1.EventTypeWarning, ReasonForcedDetach, text)
	}
}
