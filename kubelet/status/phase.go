package status

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// Phase returns the phase that follows from the containers' statuses alone, while the Pod is not being stopped. A
// container that waits although it ran before counts as one that will run again.
func Phase(spec *corev1.PodSpec, init, main []corev1.ContainerStatus) corev1.PodPhase {
	return phase(spec, init, main, anyStarted(main))
}

// phase is Phase of a Pod of which initialized says that its init containers need not run before its containers.
func phase(spec *corev1.PodSpec, init, main []corev1.ContainerStatus, initialized bool) corev1.PodPhase {
	if p, decided := initPhase(spec, init, initialized); decided {
		return p
	}
	var running, again, failed int
	for i := range spec.Containers {
		c := &spec.Containers[i]
		s := podutil.FindStatus(main, c.Name)
		switch {
		case s == nil:
			return corev1.PodPending
		case s.State.Running != nil:
			running++
		case s.State.Terminated != nil:
			if WillRestart(spec, c, s.State.Terminated.ExitCode) {
				again++
			} else if s.State.Terminated.ExitCode != 0 {
				failed++
			}
		case s.LastTerminationState.Terminated != nil:
			again++
		default:
			return corev1.PodPending
		}
	}
	switch {
	case running+again > 0:
		return corev1.PodRunning
	case failed > 0:
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

// initPhase returns the phase while init containers decide it.
func initPhase(spec *corev1.PodSpec, init []corev1.ContainerStatus, initialized bool) (corev1.PodPhase, bool) {
	pending, failed := false, false
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		s := podutil.FindStatus(init, c.Name)
		switch {
		case podutil.IsSidecar(c, podutil.Init):
			pending = pending || s == nil || s.Started == nil || !*s.Started
		case s == nil, s.State.Running != nil, s.State.Waiting != nil && s.LastTerminationState.Terminated == nil:
			pending = true
		case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
			failed = failed || !WillRestart(spec, c, s.State.Terminated.ExitCode)
			pending = true
		case s.State.Waiting != nil:
			pending = true
		}
	}
	switch {
	case failed:
		return corev1.PodFailed, true
	case pending && !initialized:
		return corev1.PodPending, true
	}
	return "", false
}

// WillRestart reports whether a container that ended with the exit code is started again, by its own rules, its own
// policy, or else the Pod's. An init container that has succeeded is not.
func WillRestart(spec *corev1.PodSpec, c *corev1.Container, code int32) bool {
	if _, kind := podutil.FindContainer(spec, c.Name); code == 0 && kind == podutil.Init && !podutil.IsSidecar(c, kind) {
		return false
	}
	return kuberuntime.RestartsOnExit(c, &corev1.Pod{Spec: *spec}, code)
}
