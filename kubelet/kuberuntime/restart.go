package kuberuntime

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

// restartPolicy returns the restart policy of the container: its own, or else the Pod's, or else Always.
func restartPolicy(c *corev1.Container, pod *corev1.Pod) corev1.RestartPolicy {
	if c.RestartPolicy != nil {
		return corev1.RestartPolicy(*c.RestartPolicy)
	}
	if pod.Spec.RestartPolicy == "" {
		return corev1.RestartPolicyAlways
	}
	return pod.Spec.RestartPolicy
}

// matchingRule returns the first of the container's restart rules for this exit code, or nil.
func matchingRule(c *corev1.Container, exitCode int32) *corev1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		rule := &c.RestartPolicyRules[i]
		if rule.ExitCodes == nil {
			continue
		}
		listed := slices.Contains(rule.ExitCodes.Values, exitCode)
		switch rule.ExitCodes.Operator {
		case corev1.ContainerRestartRuleOnExitCodesOpIn:
			if listed {
				return rule
			}
		case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
			if !listed {
				return rule
			}
		}
	}
	return nil
}

// RestartsOnExit reports whether a container that ended with this exit code is started again, by its restart rules, its
// own policy and the Pod's, in that order. It does not consider whether the Pod is being deleted.
func RestartsOnExit(c *corev1.Container, pod *corev1.Pod, exitCode int32) bool {
	if c.RestartPolicy != nil {
		if rule := matchingRule(c, exitCode); rule != nil {
			switch rule.Action {
			case corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers:
				return true
			}
		}
	}
	switch restartPolicy(c, pod) {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return exitCode != 0
	default:
		return true
	}
}

// shouldRestart reports whether a container that does not run, of which last is the newest instance or nil, has to.
func (p *planner) shouldRestart(c *corev1.Container, last *container.ContainerStatus) bool {
	if p.pod.DeletionTimestamp != nil {
		return false
	}
	if last == nil {
		return true
	}
	switch last.State {
	case container.StateExited:
		return RestartsOnExit(c, p.pod, last.ExitCode) || p.in.Restarting != nil && p.in.Restarting(last.ID)
	case container.StateRunning:
		return false
	default:
		return true
	}
}

// planRestartAll plans the restart of all containers in their sandbox if a container has ended in a way that demands it:
// everything is stopped without preStop hooks, and removed. The containers whose exit demands it are removed last, so that after
// a crash the same plan results.
func (p *planner) planRestartAll() bool {
	if p.pod.DeletionTimestamp != nil {
		return false
	}
	var targets, sources []*container.ContainerStatus
	collect := func(list []corev1.Container) {
		for i := len(list) - 1; i >= 0; i-- {
			c := &list[i]
			instances := p.oldestFirst(c.Name)
			if len(instances) == 0 {
				continue
			}
			newest := instances[len(instances)-1]
			if wantsRestartAll(c, newest) {
				sources = append(sources, instances...)
				continue
			}
			if newest.State == container.StateRunning || newest.State == container.StateUnknown {
				p.out.Kill = append(p.out.Kill, Kill{Status: newest, Container: c, Reason: KillRestartAll,
					Message: "Container " + c.Name + " is stopped, all containers will be restarted", GracePeriod: ptr.To[int64](0)})
			}
			targets = append(targets, instances...)
		}
	}
	collect(p.pod.Spec.Containers)
	collect(p.pod.Spec.InitContainers)
	if len(sources) == 0 {
		p.out = Actions{}
		return false
	}
	p.out.RestartAll = true
	p.out.Remove = append(targets, sources...)
	if sandbox := p.status.LatestSandbox(); sandbox != nil {
		p.out.SandboxID, p.out.Attempt = sandbox.Id, sandbox.GetMetadata().GetAttempt()
	}
	return true
}

// RestartingAll reports whether the exit of one of the Pod's containers can restart all of them, and whether such an
// exit has happened and its container is not removed yet.
func RestartingAll(pod *corev1.Pod, held *container.PodStatus) (possible, asked bool) {
	for c, kind := range podutil.Containers(&pod.Spec) {
		if kind == podutil.Ephemeral {
			continue // it has no restart policy
		}
		possible = possible || slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
		last := held.Find(c.Name)
		asked = asked || last != nil && wantsRestartAll(c, last)
	}
	return possible, asked && pod.DeletionTimestamp == nil
}

func wantsRestartAll(c *corev1.Container, last *container.ContainerStatus) bool {
	if c.RestartPolicy == nil || last.State != container.StateExited {
		return false
	}
	rule := matchingRule(c, last.ExitCode)
	return rule != nil && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}
