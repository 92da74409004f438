package kuberuntime

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

// planInitContainers plans the init containers and says whether the main containers may be looked at in the same pass.
func (p *planner) planInitContainers() bool {
	list := p.pod.Spec.InitContainers
	if len(list) == 0 {
		return true
	}
	if p.initialized() {
		for i := range list {
			p.keepSidecar(i, false)
		}
		return true
	}
	newest := -1
	for i := range list {
		if p.inSandbox(list[i].Name) != nil {
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

// initialized says whether a main container was made in the Pod's sandbox. Then all init containers are done, even
// if the runtime does not hold them any more. One from an earlier sandbox says nothing: after a reboot everything
// begins anew.
func (p *planner) initialized() bool {
	for i := range p.pod.Spec.Containers {
		if p.inSandbox(p.pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// inSandbox returns the newest instance of the container if it belongs to the newest sandbox.
func (p *planner) inSandbox(name string) *container.ContainerStatus {
	s, sandbox := p.status.Find(name), p.status.LatestSandbox()
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

// startInitFrom plans the init containers from index i on, as far as one can go without waiting for any: a regular one has
// to end, and a sidecar with a startup probe has to pass it. It says whether the whole list is passed.
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

// planNewestSidecar looks at the sidecar that initialization has come to.
func (p *planner) planNewestSidecar(i int) bool {
	c := &p.pod.Spec.InitContainers[i]
	last := p.inSandbox(c.Name)
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

// keepSidecar sees to it that a sidecar that was started once goes on running. It says whether it is started now.
// With blocking, what is planned after it waits for it.
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

// planNewestInit looks at the regular init container that initialization has come to.
func (p *planner) planNewestInit(i int) bool {
	c := &p.pod.Spec.InitContainers[i]
	last := p.inSandbox(c.Name)
	if last.State == container.StateRunning {
		return false
	}
	if last.State == container.StateExited && last.ExitCode == 0 {
		return p.pod.DeletionTimestamp == nil && p.startInitFrom(i+1)
	}
	if last.State == container.StateUnknown && restartPolicy(c, p.pod) == corev1.RestartPolicyNever ||
		!shouldRestart(c, p.pod, last) {
		p.finish() // the init container has failed for good, and the Pod with it
		return false
	}
	if last.State == container.StateUnknown {
		p.killUnknown(last, c)
	}
	p.start(podutil.Init, i, last, true)
	return false
}

func (p *planner) killUnknown(s *container.ContainerStatus, c *corev1.Container) {
	p.kill(s, c, KillUnknown, fmt.Sprintf("Init container is in %q state, try killing it before restart", s.State))
}
