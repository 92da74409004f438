package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Phase is the phase that follows from the containers' statuses alone, as long as the Pod is not being stopped.
// A container that waits although it ran before counts as one that will run again.
func Phase(spec *corev1.PodSpec, init, main []corev1.ContainerStatus) corev1.PodPhase {
	if p, decided := initPhase(spec, init, main); decided {
		return p
	}
	var running, again, failed int
	for i := range spec.Containers {
		c := &spec.Containers[i]
		s := find(main, c.Name)
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

// initPhase decides the phase while init containers do.
func initPhase(spec *corev1.PodSpec, init, main []corev1.ContainerStatus) (corev1.PodPhase, bool) {
	pending, failed := false, false
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		s := find(init, c.Name)
		switch {
		case IsSidecar(c):
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
	case pending && !anyStarted(main):
		return corev1.PodPending, true
	}
	return "", false
}

// IsSidecar reports whether an init container goes on running beside the main ones.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// WillRestart reports whether a container that ended with the exit code is to be started again, by its own rules,
// its own policy, or else the Pod's.
func WillRestart(spec *corev1.PodSpec, c *corev1.Container, code int32) bool {
	for _, rule := range c.RestartPolicyRules {
		if rule.ExitCodes == nil {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, code)
		if in == (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return true
		}
	}
	policy := spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	} else if policy == corev1.RestartPolicyAlways && isInit(spec, c) {
		policy = corev1.RestartPolicyOnFailure // an init container that has succeeded is done
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

func isInit(spec *corev1.PodSpec, c *corev1.Container) bool {
	return slices.ContainsFunc(spec.InitContainers, func(i corev1.Container) bool { return i.Name == c.Name })
}

func find(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}
