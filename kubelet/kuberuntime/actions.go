package kuberuntime

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

// ComputeActions returns what to do for the Pod, given its state in the runtime. It changes nothing and depends on no
// event, so the same input gives the same result: after a crash the same call finds the next step. A nil status is that
// of a Pod of which the runtime has nothing.
func ComputeActions(pod *corev1.Pod, status *container.PodStatus, in Inputs) Actions {
	if status == nil {
		status = &container.PodStatus{UID: pod.UID}
	}
	p := &planner{pod: pod, status: status, in: in}
	if p.planRestartAll() {
		return p.out
	}
	if p.planSandbox() {
		return p.out
	}
	p.planEphemeralContainers()
	if p.planInitContainers() && !p.out.Finished {
		p.planMainContainers()
	}
	return p.out
}

// planner collects the actions of one call of ComputeActions.
type planner struct {
	pod    *corev1.Pod
	status *container.PodStatus
	in     Inputs
	out    Actions
}

// planSandbox reports whether the Pod needs a new sandbox, or has ended without a usable one, and then plans everything.
// Otherwise it records the ready sandbox.
func (p *planner) planSandbox() bool {
	sandbox := p.status.LatestSandbox()
	if sandboxUsable(p.pod, p.status) {
		p.out.SandboxID, p.out.Attempt = sandbox.Id, sandbox.GetMetadata().GetAttempt()
		return false
	}
	p.out.KillPod = sandbox != nil || len(p.status.Running()) > 0
	for _, s := range p.status.Sandboxes {
		p.out.Attempt = max(p.out.Attempt, s.GetMetadata().GetAttempt()+1)
	}
	starts := p.mainContainersForNewSandbox()
	if p.pod.DeletionTimestamp != nil || p.finishedWithSandbox(starts) {
		p.finish()
		return true
	}
	p.out.CreateSandbox = true
	p.out.SandboxChanged = sandbox != nil
	for i := range p.pod.Spec.InitContainers {
		p.out.Remove = append(p.out.Remove, p.oldestFirst(p.pod.Spec.InitContainers[i].Name)...)
	}
	if !p.startInitFrom(0) {
		return true
	}
	for _, i := range starts {
		p.start(podutil.Regular, i, p.status.Find(p.pod.Spec.Containers[i].Name), false)
	}
	return true
}

// oldestFirst lists the instances of a container in the order of their removal: an interruption leaves the newest one,
// from which the restart count continues.
func (p *planner) oldestFirst(name string) []*container.ContainerStatus {
	instances := p.status.All(name)
	slices.Reverse(instances)
	return instances
}

// finishedWithSandbox reports whether the loss of the sandbox ends the Pod, rather than a new sandbox in which the main
// containers with these indexes start.
func (p *planner) finishedWithSandbox(starts []int) bool {
	if len(starts) == 0 && p.anyMainCreated() {
		return true // every main container has run
	}
	if p.pod.Spec.RestartPolicy != corev1.RestartPolicyNever || !p.anyHasRun() || p.out.Attempt == 0 {
		return false
	}
	for i := range p.pod.Spec.Containers {
		policy := p.pod.Spec.Containers[i].RestartPolicy
		if policy != nil && *policy != corev1.ContainerRestartPolicyNever {
			return false
		}
	}
	return true
}

// anyHasRun reports whether any instance has run. One that was only created has not started the Pod's work.
func (p *planner) anyHasRun() bool {
	return slices.ContainsFunc(p.status.Containers, func(c *container.ContainerStatus) bool {
		return c.State != container.StateCreated
	})
}

// mainContainersForNewSandbox lists the main containers that have to run in a new sandbox: all but those that have run
// for the last time. Those that run in the old one count as failed, since they end with it.
func (p *planner) mainContainersForNewSandbox() []int {
	var starts []int
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		last := p.status.Find(c.Name)
		succeeded := last != nil && last.State == container.StateExited && last.ExitCode == 0
		switch policy := restartPolicy(c, p.pod); {
		case policy == corev1.RestartPolicyOnFailure && succeeded:
		case policy == corev1.RestartPolicyNever && last != nil && !mayRunAgain(c, last):
		default:
			starts = append(starts, i)
		}
	}
	return starts
}

// mayRunAgain reports whether a container that its policy never restarts has a rule that restarts it.
func mayRunAgain(c *corev1.Container, last *container.ContainerStatus) bool {
	if last.State == container.StateCreated {
		return true
	}
	rule := matchingRule(c, last.ExitCode)
	return last.State == container.StateExited && rule != nil
}

// anyMainCreated reports whether a main container was created, in any sandbox.
func (p *planner) anyMainCreated() bool {
	for i := range p.pod.Spec.Containers {
		if p.status.Find(p.pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// sandboxUsable reports whether the newest sandbox is the only ready one and still fits the Pod.
func sandboxUsable(pod *corev1.Pod, status *container.PodStatus) bool {
	latest, ready := status.LatestSandbox(), status.ReadySandboxes()
	if latest == nil || len(ready) != 1 || ready[0] != latest {
		return false
	}
	if latest.GetLinux().GetNamespaces().GetOptions().GetNetwork() != networkMode(pod) {
		return false
	}
	noAddress := latest.Network != nil && latest.Network.Ip == ""
	return pod.Spec.HostNetwork || !noAddress
}

// UsableSandbox returns the sandbox in which to start the Pod's containers, or nil if the Pod needs a new one.
func UsableSandbox(pod *corev1.Pod, status *container.PodStatus) *runtimeapi.PodSandboxStatus {
	if status == nil || !sandboxUsable(pod, status) {
		return nil
	}
	return status.LatestSandbox()
}

// planEphemeralContainers plans the ephemeral containers that have never run. They do not wait for initialization, and
// are not restarted.
func (p *planner) planEphemeralContainers() {
	if p.pod.DeletionTimestamp != nil {
		return
	}
	for i := range p.pod.Spec.EphemeralContainers {
		ec := &p.pod.Spec.EphemeralContainers[i]
		last := p.status.Find(ec.Name)
		if last != nil && last.State != container.StateCreated {
			continue
		}
		p.start(podutil.Ephemeral, i, last, false)
	}
}

// planMainContainers plans the main containers of an initialized Pod, and its end when none is left to run.
func (p *planner) planMainContainers() {
	kept := 0
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		last := p.status.Find(c.Name)
		switch {
		case last == nil || last.State != container.StateRunning:
			if !p.shouldRestart(c, last) {
				continue
			}
			if last != nil && last.State == container.StateUnknown {
				p.kill(last, c, KillUnknown, fmt.Sprintf("Container is in %q state, try killing it before restart", last.State))
			}
			p.start(podutil.Regular, i, last, false)
			kept++
		default:
			reason, message := p.needsKill(c, last, "Container")
			if reason == "" {
				kept++
				p.resize(c, last)
				continue
			}
			restart := p.pod.DeletionTimestamp == nil &&
				(reason == KillDefinitionChanged || reason == KillResize || restartPolicy(c, p.pod) != corev1.RestartPolicyNever)
			if restart {
				message += ", will be restarted"
				kept++
			}
			p.kill(last, c, reason, message)
			if restart {
				p.out.Kill[len(p.out.Kill)-1].Restart = true
				p.start(podutil.Regular, i, last, false)
			}
		}
	}
	if kept == 0 {
		p.finish()
	}
}

// finish ends the Pod: all that still runs is stopped, and nothing is started.
func (p *planner) finish() {
	p.out = Actions{KillPod: true, Finished: true, SandboxID: p.out.SandboxID, Attempt: p.out.Attempt}
}

// needsKill returns why a running container must be killed; an empty reason keeps it.
func (p *planner) needsKill(c *corev1.Container, s *container.ContainerStatus, what string) (KillReason, string) {
	if s.SpecHash != 0 && s.SpecHash != HashContainer(c) {
		return KillDefinitionChanged, fmt.Sprintf("%s %s definition changed", what, c.Name)
	}
	if c.LivenessProbe != nil && probeResult(p.in.Liveness, s.ID) == ProbeFailure {
		return KillLiveness, fmt.Sprintf("%s %s failed liveness probe", what, c.Name)
	}
	if c.StartupProbe != nil && probeResult(p.in.Startup, s.ID) == ProbeFailure {
		return KillStartup, fmt.Sprintf("%s %s failed startup probe", what, c.Name)
	}
	if p.resizeNeedsRestart(c, s) {
		return KillResize, fmt.Sprintf("%s %s resize requires restart", what, c.Name)
	}
	return "", ""
}

func probeResult(result func(string) ProbeResult, id string) ProbeResult {
	if result == nil {
		return ProbeUnknown
	}
	return result(id)
}

func (p *planner) kill(s *container.ContainerStatus, c *corev1.Container, reason KillReason, message string) {
	p.out.Kill = append(p.out.Kill, Kill{Status: s, Container: c, Reason: reason, Message: message})
}

// start plans the start of one container, or its backoff. last is its newest instance, or nil. It reports whether the
// container starts now.
func (p *planner) start(kind podutil.Kind, index int, last *container.ContainerStatus, blocking bool) bool {
	c := containerAt(p.pod, kind, index)
	plan := Start{Kind: kind, Index: index, Container: c, Blocking: blocking, BackoffKey: backoffKey(p.pod, c)}
	if kind == podutil.Ephemeral {
		target := p.status.Find(p.pod.Spec.EphemeralContainers[index].TargetContainerName)
		if target != nil {
			plan.TargetID = target.ID
		}
	} else if exited := p.status.FindExited(c.Name); exited != nil {
		until, delay := p.in.Backoff.Due(p.pod.UID, plan.BackoffKey, exited.FinishedAt)
		// A time of exit in the future was recorded before the clock was set back. Waiting for the clock to reach it
		// could take forever.
		if until.After(p.in.Now) && !exited.FinishedAt.After(p.in.Now) {
			p.planBackoff(c, until, delay)
			return false
		}
		plan.BackoffSince = exited.FinishedAt
	}
	if last != nil && last.State == container.StateCreated {
		// It has never run: the kubelet crashed before the start. It is removed, and its number is used again.
		plan.Attempt = last.Attempt
		p.remove(last)
	} else {
		plan.Attempt = p.nextAttempt(c.Name, last)
	}
	p.out.Start = append(p.out.Start, plan)
	return true
}

// remove plans the removal of an instance, once.
func (p *planner) remove(s *container.ContainerStatus) {
	for _, r := range p.out.Remove {
		if r.ID == s.ID {
			return
		}
	}
	p.out.Remove = append(p.out.Remove, s)
}

// nextAttempt returns the restart count after the highest known one. The runtime may have lost the newest instance.
func (p *planner) nextAttempt(name string, last *container.ContainerStatus) uint32 {
	next := uint32(0)
	if last != nil {
		next = last.Attempt + 1
	}
	if p.in.LastAttempt != nil {
		if n, known := p.in.LastAttempt(name); known {
			next = max(next, n+1)
		}
	}
	return next
}

func (p *planner) planBackoff(c *corev1.Container, until time.Time, delay time.Duration) {
	p.out.Waiting = append(p.out.Waiting, Waiting{
		Container: c.Name,
		Until:     until,
		Delay:     delay,
		Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
			delay, c.Name, p.pod.Name, p.pod.Namespace, p.pod.UID),
	})
	if p.out.NextSync.IsZero() || until.Before(p.out.NextSync) {
		p.out.NextSync = until
	}
}

// containerAt returns a container of the spec. The common part of an ephemeral container has the same fields.
func containerAt(pod *corev1.Pod, kind podutil.Kind, index int) *corev1.Container {
	switch kind {
	case podutil.Init:
		return &pod.Spec.InitContainers[index]
	case podutil.Ephemeral:
		return (*corev1.Container)(&pod.Spec.EphemeralContainers[index].EphemeralContainerCommon)
	default:
		return &pod.Spec.Containers[index]
	}
}
