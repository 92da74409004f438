package kuberuntime

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

const (
	// reasonOOMKilled is the reason of a container of which the kernel has killed a process for lack of memory.
	reasonOOMKilled = "OOMKilled"
	// exitKilled is the exit code of a process that was killed.
	exitKilled = 137
)

// planInitContainers plans the init containers and reports whether the main containers are planned in the same pass.
func (p *planner) planInitContainers() bool {
	list := p.pod.Spec.InitContainers
	if len(list) == 0 {
		return true
	}
	if Initialized(p.pod, p.status) {
		for i := range list {
			p.keepSidecar(i, false)
		}
		return true
	}
	newest := -1
	for i := range list {
		if inSandbox(p.status, list[i].Name) != nil {
			newest = i
		}
	}
	if newest < 0 {
		return p.pod.DeletionTimestamp == nil && p.startInitFrom(0)
	}
	for i := range newest {
		p.keepSidecar(i, false)
	}
	if podutil.IsSidecar(&list[newest], podutil.Init) {
		return p.planNewestSidecar(newest)
	}
	return p.planNewestInit(newest)
}

// Initialized reports whether a main container was created in the Pod's newest sandbox. Then all init containers are done,
// even if the runtime has removed them. A container of an earlier sandbox does not count: after a reboot everything starts
// over.
func Initialized(pod *corev1.Pod, status *container.PodStatus) bool {
	for i := range pod.Spec.Containers {
		if inSandbox(status, pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// inSandbox returns the newest instance of the container if it belongs to the newest sandbox.
func inSandbox(status *container.PodStatus, name string) *container.ContainerStatus {
	s, sandbox := status.Find(name), status.LatestSandbox()
	if s == nil || sandbox == nil {
		return nil
	}
	if s.SandboxID != "" {
		if s.SandboxID != sandbox.Id {
			return nil
		}
		return s
	}
	if s.CreatedAt.UnixNano() < sandbox.CreatedAt {
		return nil
	}
	return s
}

// startInitFrom plans the init containers from index i on up to the first that must be waited for: a regular one until
// it ends, and a sidecar with a startup probe until it passes. It reports whether all of them are passed.
func (p *planner) startInitFrom(i int) bool {
	for ; i < len(p.pod.Spec.InitContainers); i++ {
		c := &p.pod.Spec.InitContainers[i]
		if !p.start(podutil.Init, i, p.status.Find(c.Name), true) {
			return false
		}
		if !podutil.IsSidecar(c, podutil.Init) || c.StartupProbe != nil {
			return false
		}
	}
	return true
}

// planNewestSidecar plans the sidecar that initialization has reached.
func (p *planner) planNewestSidecar(i int) bool {
	c := &p.pod.Spec.InitContainers[i]
	last := inSandbox(p.status, c.Name)
	if last.State != container.StateRunning {
		return p.keepSidecar(i, true) && c.StartupProbe == nil && p.startInitFrom(i+1)
	}
	if reason, _ := p.needsKill(c, last, "Init container"); reason != "" && reason != KillLiveness {
		p.keepSidecar(i, false)
		return false
	}
	if c.StartupProbe != nil && probeResult(p.in.Startup, last.ID) != ProbeSuccess {
		return false
	}
	p.keepSidecar(i, false)
	return p.startInitFrom(i + 1)
}

// keepSidecar keeps a sidecar running that was started once. It reports whether the sidecar starts now. If blocking is
// set, what is planned after it waits for it.
func (p *planner) keepSidecar(i int, blocking bool) bool {
	c := &p.pod.Spec.InitContainers[i]
	if !podutil.IsSidecar(c, podutil.Init) || p.pod.DeletionTimestamp != nil {
		return false
	}
	last := p.status.Find(c.Name)
	if last != nil {
		switch last.State {
		case container.StateRunning:
			reason, message := p.needsKill(c, last, "Init container")
			if reason == "" {
				p.resize(c, last)
				return false
			}
			p.kill(last, c, reason, message)
		case container.StateUnknown:
			p.killUnknown(last, c)
		}
	}
	return p.start(podutil.Init, i, last, blocking)
}

// planNewestInit plans the regular init container that initialization has reached.
func (p *planner) planNewestInit(i int) bool {
	c := &p.pod.Spec.InitContainers[i]
	last := inSandbox(p.status, c.Name)
	if last.State == container.StateRunning {
		p.resize(c, last) // never by a restart: the API server does not allow that for regular init containers
		return false
	}
	ended := *last
	ended.ExitCode = exitCodeOfInit(last)
	if last.State == container.StateExited && ended.ExitCode == 0 {
		return p.pod.DeletionTimestamp == nil && p.startInitFrom(i+1)
	}
	if last.State == container.StateUnknown && restartPolicy(c, p.pod) == corev1.RestartPolicyNever ||
		!p.shouldRestart(c, &ended) {
		p.finish() // the init container has failed for good, and the Pod with it
		return false
	}
	if last.State == container.StateUnknown {
		p.killUnknown(last, c)
	}
	p.start(podutil.Init, i, last, true)
	return false
}

// exitCodeOfInit returns the exit code of a regular init container that has ended. One of whose processes the kernel has killed for lack of
// memory has failed, even if its main process went on and ended with 0.
func exitCodeOfInit(s *container.ContainerStatus) int32 {
	if s.ExitCode == 0 && s.Reason == reasonOOMKilled {
		return exitKilled
	}
	return s.ExitCode
}

func (p *planner) killUnknown(s *container.ContainerStatus, c *corev1.Container) {
	p.kill(s, c, KillUnknown, fmt.Sprintf("Init container is in %q state, try killing it before restart", s.State))
}
