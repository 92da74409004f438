package status

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

const (
	reasonCreating     = "ContainerCreating"
	reasonInitializing = "PodInitializing"
	reasonCompleted    = "Completed"
	reasonError        = "Error"
	reasonUnknown      = "ContainerStatusUnknown"
	reasonRestarting   = "RestartingAllContainers"
	messageVanished    = "The container could not be located when the pod was deleted.  " +
		"The container used to be Running"
	messageRestarting = "The container was removed to restart all containers of the Pod in place"
	messageNeverRan   = "The container could not be located when the pod was terminated"
	// Upstream's message begins so, and its suite reads that.
	messageInitGone = "Unable to get init container status from the container runtime, which has it no more; it has succeeded, as the " +
		"Pod's containers were started after it"
	// exitUnknown is the exit code of a container whose exit code is not known.
	exitUnknown = 137
	// maxPodMessages is the size of the termination messages of all containers of a Pod, in bytes, without those of their former instances.
	maxPodMessages = 12 << 10
)

// setContainerStatuses sets the three lists of container statuses.
func setContainerStatuses(in *Input, out *corev1.PodStatus) {
	spec := &in.Pod.Spec
	mainsExist := false
	for i := range spec.Containers {
		c := &spec.Containers[i]
		mainsExist = mainsExist || in.Runtime.Find(c.Name) != nil
		fallback := reasonCreating
		if len(spec.InitContainers) > 0 {
			fallback = reasonInitializing
		}
		out.ContainerStatuses = append(out.ContainerStatuses,
			containerStatus(in, c, podutil.FindStatus(in.Old.ContainerStatuses, c.Name), fallback, true))
	}
	slices.SortFunc(out.ContainerStatuses, func(a, b corev1.ContainerStatus) int {
		return strings.Compare(a.Name, b.Name)
	})
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		s := containerStatus(in, c, podutil.FindStatus(in.Old.InitContainerStatuses, c.Name), reasonInitializing, podutil.IsSidecar(c, podutil.Init))
		if !podutil.IsSidecar(c, podutil.Init) {
			ended := s.State.Terminated
			if mainsExist && in.Runtime.Find(c.Name) == nil && !restarts(in, c.Name) {
				// It was removed after it had succeeded, or no main container would exist.
				if ended == nil || ended.Reason == reasonUnknown {
					ended = &corev1.ContainerStateTerminated{Reason: reasonCompleted, Message: messageInitGone}
				}
				s.State = corev1.ContainerState{Terminated: ended}
			}
			s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		}
		out.InitContainerStatuses = append(out.InitContainerStatuses, s)
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		s := containerStatus(in, &c, podutil.FindStatus(in.Old.EphemeralContainerStatuses, c.Name), reasonCreating, false)
		s.Ready = false
		out.EphemeralContainerStatuses = append(out.EphemeralContainerStatuses, s)
	}
	slices.SortFunc(out.EphemeralContainerStatuses, func(a, b corev1.ContainerStatus) int {
		return strings.Compare(a.Name, b.Name)
	})
	if in.Ended {
		fillTerminated(in, out)
	}
}

// fillTerminated sets the ends that the containers of an ended Pod have or must have had. Containers behind an init
// container that has not succeeded keep waiting for it.
func fillTerminated(in *Input, out *corev1.PodStatus) {
	for i := range out.EphemeralContainerStatuses {
		fillTerminatedContainer(in, &out.EphemeralContainerStatuses[i])
	}
	begun := len(out.InitContainerStatuses) // how many init containers were reached
	if !initializationDone(in, out) {
		for begun > 0 && !wasStarted(&out.InitContainerStatuses[begun-1]) {
			begun--
		}
	} else {
		for i := range out.ContainerStatuses {
			fillTerminatedContainer(in, &out.ContainerStatuses[i])
		}
	}
	for i := range out.InitContainerStatuses[:begun] {
		s := &out.InitContainerStatuses[i]
		fillTerminatedContainer(in, s)
		s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 &&
			!podutil.IsSidecar(&in.Pod.Spec.InitContainers[i], podutil.Init)
	}
}

// initializationDone reports whether the main containers were ever reached.
func initializationDone(in *Input, out *corev1.PodStatus) bool {
	for i := range out.ContainerStatuses {
		if wasStarted(&out.ContainerStatuses[i]) {
			return true
		}
	}
	for i := range in.Pod.Spec.InitContainers {
		s := &out.InitContainerStatuses[i]
		ended := s.State.Terminated
		done := ended != nil && ended.ExitCode == 0
		if podutil.IsSidecar(&in.Pod.Spec.InitContainers[i], podutil.Init) {
			done = wasStarted(s)
		}
		if !done {
			return false
		}
	}
	return true
}

// wasStarted reports whether any instance of the container has run.
func wasStarted(s *corev1.ContainerStatus) bool {
	return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
}

// containerStatus returns the status of one container. fallback is the waiting reason of one that does not exist yet,
// and lasting says that it is to keep running, so that it can be started and ready.
func containerStatus(in *Input, c *corev1.Container, old *corev1.ContainerStatus, fallback string, lasting bool,
) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.Name, Image: c.Image}
	all := in.Runtime.All(c.Name)
	if len(all) == 0 {
		statusWithoutInstance(in, &s, old, fallback)
	} else {
		statusOfInstances(in, &s, old, all, fallback)
	}
	if w, ok := in.Waiting[c.Name]; ok && s.State.Running == nil && !in.Ended {
		if s.State.Terminated != nil {
			s.LastTerminationState = corev1.ContainerState{Terminated: s.State.Terminated}
		}
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: w.Reason, Message: w.Message}}
	}
	setDetails(in, c, &s, lasting)
	setResources(in, c, &s, old)
	return s
}

// statusWithoutInstance sets the status of a container of which the runtime has no instance.
func statusWithoutInstance(in *Input, s *corev1.ContainerStatus, old *corev1.ContainerStatus, fallback string) {
	s.State.Waiting = &corev1.ContainerStateWaiting{Reason: fallback}
	if old == nil {
		return
	}
	s.RestartCount, s.LastTerminationState = old.RestartCount, old.LastTerminationState
	switch {
	case in.Runtime == nil:
		*s = *old.DeepCopy() // not read yet: the old status stays
		s.VolumeMounts = nil // they follow from the spec
	case old.State.Waiting == nil && restarts(in, s.Name):
		setRestarting(s, old)
	case old.State.Terminated != nil:
		*s = *old.DeepCopy()
		s.VolumeMounts = nil
		if !in.Ended && willRestart(in, s.Name, old.State.Terminated.ExitCode) {
			s.LastTerminationState = s.State
			s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: fallback}}
		}
	case old.State.Running != nil:
		s.ContainerID, s.ImageID = old.ContainerID, old.ImageID
		gone := &corev1.ContainerStateTerminated{
			Reason: reasonUnknown, Message: messageVanished, ExitCode: exitUnknown, ContainerID: old.ContainerID,
		}
		if in.Ended || in.Pod.DeletionTimestamp != nil {
			s.State = corev1.ContainerState{Terminated: gone}
			return
		}
		s.LastTerminationState = corev1.ContainerState{Terminated: gone}
		s.RestartCount++
	}
}

// restarts reports whether a container is restarted because another one's exit restarts all: that one exists, or is removed already.
func restarts(in *Input, name string) bool {
	if _, kind := podutil.FindContainer(&in.Pod.Spec, name); kind == podutil.Ephemeral || in.Ended || in.Pod.DeletionTimestamp != nil {
		return false
	}
	if before := condition(in.Old.Conditions, corev1.AllContainersRestarting); before != nil && before.Status == corev1.ConditionTrue {
		return true
	}
	_, asked := kuberuntime.RestartingAll(in.Pod, in.Runtime)
	return asked
}

// setRestarting sets the status of a container that was removed so that all containers start again: it waits for that, whatever its
// restart policy says about how it has ended.
func setRestarting(s, old *corev1.ContainerStatus) {
	ended := &corev1.ContainerStateTerminated{ExitCode: exitUnknown, ContainerID: old.ContainerID}
	if old.State.Terminated != nil {
		ended = old.State.Terminated.DeepCopy()
	}
	ended.Reason, ended.Message = reasonRestarting, messageRestarting
	s.ContainerID, s.ImageID, s.RestartCount = old.ContainerID, old.ImageID, old.RestartCount+1
	s.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonRestarting, Message: messageRestarting}
	s.LastTerminationState = corev1.ContainerState{Terminated: ended}
}

// willRestart reports whether the named container would be started again after the exit code.
func willRestart(in *Input, name string, code int32) bool {
	spec := &in.Pod.Spec
	c, kind := podutil.FindContainer(spec, name)
	return c != nil && kind != podutil.Ephemeral && WillRestart(spec, c, code)
}

// statusOfInstances sets the status of a container with instances, the newest first.
func statusOfInstances(in *Input, s, old *corev1.ContainerStatus, all []*container.ContainerStatus, fallback string) {
	now := all[0]
	s.RestartCount = int32(now.Attempt)
	if old != nil {
		s.RestartCount = max(s.RestartCount, old.RestartCount)
	}
	s.ContainerID = in.containerID(now)
	if now.Image != "" {
		s.Image = now.Image
	}
	s.ImageID = now.ImageRef
	switch now.State {
	case container.StateRunning:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: apiTime(now.StartedAt)}
	case container.StateExited:
		if !in.Ended && in.Restarting != nil && in.Restarting(now.ID) {
			// The API does not accept that a container runs again which its policy does not restart.
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: fallback}
			s.LastTerminationState.Terminated = in.terminated(now)
			break
		}
		s.State.Terminated = in.terminated(now)
	case container.StateUnknown:
		s.State.Terminated = &corev1.ContainerStateTerminated{
			Reason: reasonUnknown, ExitCode: exitUnknown, ContainerID: s.ContainerID, StartedAt: apiTime(now.StartedAt),
		}
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: fallback}
	}
	for _, before := range all[1:] {
		if before.State == container.StateExited && s.LastTerminationState.Terminated == nil {
			s.LastTerminationState.Terminated = in.terminated(before)
			break
		}
	}
	if s.RestartCount > 0 && s.LastTerminationState.Terminated == nil {
		s.LastTerminationState = lastEnd(old, s.ContainerID)
	}
	if user := now.User.GetLinux(); user != nil {
		s.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{
			UID: user.Uid, GID: user.Gid, SupplementalGroups: user.SupplementalGroups,
		}}
	}
}

// lastEnd returns the end that the old status has of the instance before the one with the id. The runtime may have removed
// that instance, as when all containers of a Pod are restarted.
func lastEnd(old *corev1.ContainerStatus, id string) corev1.ContainerState {
	switch {
	case old == nil:
		return corev1.ContainerState{}
	case old.ContainerID != id && old.State.Terminated != nil:
		return *old.State.DeepCopy()
	}
	return *old.LastTerminationState.DeepCopy()
}

// fillTerminatedContainer sets the end that a container of an ended Pod has or must have had.
func fillTerminatedContainer(in *Input, s *corev1.ContainerStatus) {
	if s.State.Terminated != nil {
		return
	}
	started := false
	s.Ready, s.Started = false, &started
	if last := s.LastTerminationState.Terminated; last != nil {
		s.State, s.LastTerminationState = corev1.ContainerState{Terminated: last}, corev1.ContainerState{}
		return
	}
	s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: reasonUnknown, Message: messageNeverRan, ExitCode: exitUnknown, ContainerID: s.ContainerID,
	}}
}

// setDetails sets what follows from the state and the spec.
func setDetails(in *Input, c *corev1.Container, s *corev1.ContainerStatus, lasting bool) {
	running := s.State.Running != nil
	started := running
	if running && lasting {
		_, id, _ := strings.Cut(s.ContainerID, "://")
		if in.Probes != nil {
			started = in.Probes.Started(c, id)
			s.Ready = started && in.Probes.Ready(c, id)
		} else {
			s.Ready = true
		}
	}
	s.Started = &started
	for _, m := range c.VolumeMounts {
		mount := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			disabled := corev1.RecursiveReadOnlyDisabled
			mount.RecursiveReadOnly = &disabled
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled {
				mount.RecursiveReadOnly = recursiveReadOnly(in.Runtime.Find(c.Name), m.MountPath)
			}
		}
		s.VolumeMounts = append(s.VolumeMounts, mount)
	}
}

// setResources sets the container's allocated resources, and those in effect.
func setResources(in *Input, c *corev1.Container, s *corev1.ContainerStatus, old *corev1.ContainerStatus) {
	if in.Devices != nil && in.Runtime != nil {
		// A container has its devices before it can start: their health may be what it waits for.
		s.AllocatedResourcesStatus = in.Devices(c.Name)
	}
	if in.Runtime.Find(c.Name) == nil {
		return
	}
	s.AllocatedResources = c.Resources.Requests
	if old != nil && old.Resources != nil && in.Resize != nil && in.Resize.PendingContainers[c.Name] {
		s.Resources = old.Resources
		return
	}
	s.Resources = c.Resources.DeepCopy()
	s.Resources.Claims = nil
}

// recursiveReadOnly returns whether the runtime made the mount recursively read-only.
func recursiveReadOnly(instance *container.ContainerStatus, path string) *corev1.RecursiveReadOnlyMode {
	mode := corev1.RecursiveReadOnlyDisabled
	if instance != nil {
		for _, m := range instance.Mounts {
			if m.ContainerPath == path && m.RecursiveReadOnly {
				mode = corev1.RecursiveReadOnlyEnabled
			}
		}
	}
	return &mode
}

// terminated returns the end of one instance.
func (in *Input) terminated(c *container.ContainerStatus) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
		StartedAt: apiTime(c.StartedAt), FinishedAt: apiTime(c.FinishedAt), ContainerID: in.containerID(c),
	}
	if m, ok := in.Messages[c.ID]; ok && m != "" {
		t.Message = m
	}
	t.Message = in.limited(t.Message)
	if t.Reason == "" {
		t.Reason = reasonCompleted
		if c.ExitCode != 0 {
			t.Reason = reasonError
		}
	}
	return t
}

// limited returns the beginning of a termination message, up to the container's part of what those of the Pod may have together.
func (in *Input) limited(message string) string {
	spec := &in.Pod.Spec
	part := maxPodMessages / max(1, len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers))
	if len(message) <= part {
		return message
	}
	return strings.ToValidUTF8(message[:part], "") // without a rune that is cut
}

func (in *Input) containerID(c *container.ContainerStatus) string {
	return in.RuntimeName + "://" + c.ID
}

// apiTime rounds to the API's resolution, so that a status read back equals the one written.
func apiTime(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.Truncate(time.Second))
}
