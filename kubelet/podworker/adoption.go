package podworker

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/prober"
)

// previousTimeout is how long containers that an earlier process has started wait for what that process has said of them.
// The API server may be one of them.
const previousTimeout = 5 * time.Second

// adoption is the taking over of containers that run since an earlier process.
type adoption struct {
	// previous is the status that the earlier process has written, if decided is set. It is decided once for all containers.
	previous corev1.PodStatus
	decided  bool
	// deadline is when it is decided without previous; zero while nothing waits. Meanwhile no status is written, as it would
	// say that the containers have neither started nor are ready.
	deadline time.Time
}

// waiting reports whether containers wait to be taken over.
func (a *adoption) waiting() bool { return !a.decided && !a.deadline.IsZero() }

// adoptContainers starts the probes of containers that an earlier process has started, as soon as it is known what that
// process has said of them.
func (w *worker) adoptContainers() {
	var found []*container.ContainerStatus
	for _, c := range w.runtime.Containers {
		if c.State == container.StateRunning && !w.probed[c.ID] && w.state == syncing {
			found = append(found, c)
		}
	}
	if len(found) == 0 {
		w.adoption.deadline = time.Time{} // those that waited have ended, or are about to
		return
	}
	if !w.decideAdoption() {
		return
	}
	for _, c := range found {
		w.resumeProbes(c)
	}
}

// decideAdoption reports whether the status of the earlier process is known, or not waited for any longer.
func (w *worker) decideAdoption() bool {
	a := &w.adoption
	if a.decided {
		return true
	}
	now := w.m.deps.Clock.Now()
	if a.deadline.IsZero() {
		a.deadline = now.Add(previousTimeout)
	}
	a.previous, a.decided = w.m.deps.Statuses.Previous(w.pod)
	if !a.decided && !now.Before(a.deadline) {
		w.logger.Warn("the mirror Pod is not known yet; the probes of running containers start anew")
		a.decided = true
	}
	if !a.decided {
		w.wakeAt(a.deadline)
	}
	return a.decided
}

// resumeProbes starts the probes of a container that an earlier process started.
func (w *worker) resumeProbes(c *container.ContainerStatus) {
	w.probed[c.ID] = true
	was := prober.Container{Name: c.Name, ID: c.ID, PodIP: firstIP(w.podIPs()), StartedAt: c.StartedAt, Adopted: true}
	s := podutil.FindStatusOfAny(&w.adoption.previous, c.Name)
	if s != nil && s.ContainerID == w.m.config.RuntimeName()+"://"+c.ID {
		was.WasReady, was.WasStarted = s.Ready, s.Started != nil && *s.Started
	}
	w.m.deps.Probes.ContainerStarted(w.pod, was)
}
