package resources

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
)

// aloneTimeout bounds how long the start of a container waits until others have left its CPUs.
const aloneTimeout = 10 * time.Second

// placements are the CPUs on which containers run, or start to run, as far as this process knows. Manager.mu does not guard them.
type placements struct {
	pods map[types.UID]map[string]cpuset.CPUSet
	// changed is closed and replaced when a container has left CPUs.
	changed chan struct{}
}

func newPlacements() placements {
	return placements{pods: map[types.UID]map[string]cpuset.CPUSet{}, changed: make(chan struct{})}
}

func (p *placements) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Place returns where a container runs that is about to start. If it has CPUs of its own it waits until all others have left them: after
// an error the container must not start.
func (m *Manager) Place(ctx context.Context, uid types.UID, container string) (Pin, error) {
	m.placing.Lock()
	pin := m.Pin(uid, container)
	if m.cpus.Static() {
		set, _ := m.cpus.Of(string(uid), container)
		if m.placed.pods[uid] == nil {
			m.placed.pods[uid] = map[string]cpuset.CPUSet{}
		}
		m.placed.pods[uid][container] = set
	}
	m.placing.Unlock()
	if !pin.Exclusive {
		return pin, nil
	}
	return pin, m.waitAlone(ctx, uid, container)
}

func (m *Manager) waitAlone(ctx context.Context, uid types.UID, container string) error {
	own, _ := m.cpus.Of(string(uid), container)
	deadline := m.clock.NewTimer(aloneTimeout)
	defer deadline.Stop()
	for {
		m.placing.Lock()
		other, changed := m.otherOn(own, uid), m.placed.changed
		m.placing.Unlock()
		if other == "" {
			return nil
		}
		select {
		case <-changed:
		case <-deadline.C():
			return fmt.Errorf("container %q is to have CPUs %s for itself: %s still runs on them", container, own, other)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// otherOn names a container on the CPUs that has none of its own; empty if there is none. The caller holds placing.
func (m *Manager) otherOn(cpus cpuset.CPUSet, self types.UID) string {
	for uid, containers := range m.placed.pods {
		for name, set := range containers {
			_, exclusive := m.cpus.Of(string(uid), name)
			if exclusive && uid == self || set.Intersection(cpus).IsEmpty() {
				continue // of its own Pod's containers those that run later may have the same CPUs
			}
			return fmt.Sprintf("container %q of Pod %s", name, uid)
		}
	}
	return ""
}

// Placed records on which CPUs the running containers of a Pod are, as the runtime says; "" stands for all. Those that are starting are
// recorded by Place.
func (m *Manager) Placed(uid types.UID, running map[string]string, starting func(container string) bool) {
	if !m.cpus.Static() {
		return
	}
	m.placing.Lock()
	defer m.placing.Unlock()
	next := map[string]cpuset.CPUSet{}
	for name, set := range m.placed.pods[uid] {
		if starting(name) {
			next[name] = set
		}
	}
	for name, text := range running {
		set, err := cpuset.Parse(text)
		if err != nil || set.IsEmpty() {
			set = m.deps.Topology.All()
		}
		next[name] = set.Union(next[name])
	}
	if len(next) == 0 {
		delete(m.placed.pods, uid)
	} else {
		m.placed.pods[uid] = next
	}
	m.placed.notify()
}

// NotStarted records that a container for which Place was called does not run.
func (m *Manager) NotStarted(uid types.UID, container string) {
	if !m.cpus.Static() {
		return
	}
	m.placing.Lock()
	defer m.placing.Unlock()
	delete(m.placed.pods[uid], container)
	m.placed.notify()
}
