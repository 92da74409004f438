package podworker

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

// report computes the Pod's status and passes it to the writer, unless a newer state is known in a moment.
func (w *worker) report() {
	if w.removed || w.pod == nil || w.eviction.discarding {
		return
	}
	if w.rejected != nil {
		if w.reported {
			return
		}
		w.reported = true
		w.setStatus(status.Rejected(w.pod, *w.rejected, w.m.deps.Clock.Now()))
		return
	}
	if w.adoption.waiting() {
		return
	}
	if w.reported && w.state == syncing && (w.busy.Load() > 0 || w.needsRead() || w.isReplacing()) {
		return
	}
	if !w.reported && podutil.IsTerminal(&w.pod.Status) && (!w.ended() || containersEnded(&w.pod.Status)) {
		return // an earlier process wrote its last status, or it is not known yet
	}
	w.reported = true
	next := status.Compute(status.Input{
		Pod:         w.pod,
		Old:         w.lastStatus(),
		Runtime:     w.runtime,
		RuntimeName: w.runtimeName(),
		Waiting:     w.waiting,
		Restarting:  w.isRestarting,
		Messages:    w.terminationMessages,
		Probes:      probeResults{w.m.deps.Probes},
		HostIPs:     w.m.config.HostIPs(),
		Prepared:    w.prepared(),
		Ended:       w.ended(),
		Failure:     w.failure,
		Resize:      w.resize.status(),
		Devices: func(container string) []corev1.ResourceStatus {
			return w.m.deps.Builder.DeviceStatus(w.pod, container)
		},
		Now: w.m.deps.Clock.Now(),
	})
	if podutil.IsTerminal(&next) && w.ended() && !w.vacated.Load() {
		w.m.vacate(w) // the scheduler, which reads the status, gives what it had to others, whose admission must not fail
	}
	w.setStatus(next)
}

// isReplacing reports whether a container that the kubelet itself replaces has ended, and the next one is about to start: the stop that was
// requested returns in a moment, and the next image is found in a moment.
func (w *worker) isReplacing() bool {
	for id := range w.restarting {
		c := w.runtime.FindID(id)
		if c == nil || c.State != container.StateExited || w.runtime.Find(c.Name).ID != id {
			continue
		}
		if spec, _ := podutil.FindContainer(&w.pod.Spec, c.Name); w.ops[opContainer+c.Name] != nil || spec != nil && w.looksUpImage(spec) {
			return true
		}
	}
	return false
}

// prepared reports whether sandbox, network and volumes are ready. A container in the sandbox shows that the volumes are mounted, also to a
// process that has not mounted them itself.
func (w *worker) prepared() bool {
	box := kuberuntime.UsableSandbox(w.pod, w.runtime)
	if box == nil || w.ended() {
		return false
	}
	return w.volumesMounted ||
		slices.ContainsFunc(w.runtime.Containers, func(c *container.ContainerStatus) bool { return c.SandboxID == box.Id })
}

// ended reports whether no container of the Pod runs or will run again, and no driver has its ResourceClaims prepared: after the last status
// others allocate their devices. The last status of a Pod without claims does not wait for the sandboxes to stop.
func (w *worker) ended() bool {
	if w.claimsPrepared() {
		return false
	}
	return w.stopped || w.ops[opStop] != nil && len(w.runtime.Running()) == 0
}

// containersEnded reports whether all containers that the status has, except ephemeral ones, have ended. Those of a terminal Pod have
// not if who wrote its phase was interrupted, as by a power failure, or is not the kubelet.
func containersEnded(s *corev1.PodStatus) bool {
	for c, kind := range podutil.Statuses(s) {
		if kind != podutil.Ephemeral && c.State.Terminated == nil {
			return false
		}
	}
	return true
}

func (w *worker) setStatus(s corev1.PodStatus) {
	w.m.deps.Statuses.Set(w.pod, s)
	if s.Phase == corev1.PodRunning && !w.firstSeen.IsZero() {
		whole := w.m.deps.Clock.Since(w.pod.CreationTimestamp.Time)
		w.m.deps.Metrics.PodRunning(w.m.deps.Clock.Since(w.firstSeen), whole, w.sliDuration(whole))
		w.firstSeen = time.Time{}
	}
	ready := podutil.IsReady(&s)
	if ready && !w.wasReady {
		w.m.deps.Timeline.Mark(w.timelineRef(), owner, timeline.StageReady, "", nil)
	}
	w.wasReady = ready
}

// recordInitEnd records the end of an init container in the timeline.
func (w *worker) recordInitEnd(c *container.ContainerStatus) {
	if spec, kind := podutil.FindContainer(&w.pod.Spec, c.Name); spec == nil || kind != podutil.Init {
		return
	}
	var err error
	if c.ExitCode != 0 {
		err = fmt.Errorf("exit code %d (%s)", c.ExitCode, c.Reason)
	}
	w.m.deps.Timeline.Mark(w.timelineRef(), owner, timeline.StageInit, c.Name, err)
}

// probeResults converts the results of probes for status.Compute. A container that the prober does not know yet counts
// as having passed only the probes that it does not have.
type probeResults struct{ probes Probes }

var _ status.Probes = probeResults{}

// Started implements status.Probes.
func (v probeResults) Started(c *corev1.Container, id string) bool {
	started, known := v.probes.Started(id)
	return started || !known && c.StartupProbe == nil
}

// Ready implements status.Probes.
func (v probeResults) Ready(c *corev1.Container, id string) bool {
	ready, known := v.probes.Ready(id)
	return ready || !known && c.ReadinessProbe == nil
}

// fieldRef references the Pod in an event, or with a name one of its containers.
func fieldRef(pod *corev1.Pod, name string) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion,
	}
	if name == "" {
		return ref
	}
	field := "containers"
	switch spec, kind := podutil.FindContainer(&pod.Spec, name); {
	case spec == nil:
	case kind == podutil.Init:
		field = "initContainers"
	case kind == podutil.Ephemeral:
		field = "ephemeralContainers"
	}
	ref.FieldPath = fmt.Sprintf("spec.%s{%s}", field, name)
	return ref
}

// runtimeName returns the scheme of the container ids, empty if the Pod has no containers. It may have to be read from the
// runtime, which need not be reachable before that.
func (w *worker) runtimeName() string {
	if w.runtime == nil || len(w.runtime.Containers) == 0 {
		return ""
	}
	return w.m.config.RuntimeName()
}
