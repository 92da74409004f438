package resources

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/cpulist"
)

// aloneTimeout bounds how long the start of a container waits until others have left its CPUs.
const aloneTimeout = 10 * time.Second

// errNotListed is why no container gets CPUs of its own right after the start.
var errNotListed = errors.New("the container runtime has not listed its containers yet")

// placements are the CPUs on which the processes of containers may be, as far as this process knows: those of a container that starts,
// or that moves, are there before the runtime is called, and all of the machine's count for a container of which nothing is known.
// Manager.mu does not guard them.
type placements struct {
	pods map[types.UID]map[string]cpuset.CPUSet
	// unread are the Pods that the runtime has had since before this process, until Placed reports them.
	unread map[types.UID]bool
	// read are the Pods that Placed has reported before listed was set. Only then is it known which Pods are unread.
	read   map[types.UID]bool
	listed bool
	// complete says that each Pod has a worker, which reads it.
	complete bool
	// changed is closed and replaced when a container has left CPUs.
	changed chan struct{}
}

func newPlacements() placements {
	return placements{
		pods: map[types.UID]map[string]cpuset.CPUSet{}, unread: map[types.UID]bool{}, read: map[types.UID]bool{}, changed: make(chan struct{}),
	}
}

func (p *placements) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Adopt records the Pods with containers that may run since before this process: until Placed reports them, they may be on any CPU. Later
// calls have no effect. No container gets CPUs of its own before the first one.
func (m *Manager) Adopt(uids []types.UID) {
	m.placing.Lock()
	defer m.placing.Unlock()
	p := &m.placed
	if p.listed {
		return
	}
	for _, uid := range uids {
		if !p.read[uid] {
			p.unread[uid] = true
		}
	}
	p.listed, p.read = true, nil
	p.notify()
}

// readAll says that each Pod has a worker from now on.
func (m *Manager) readAll() {
	m.placing.Lock()
	defer m.placing.Unlock()
	m.placed.complete = true
}

// Place returns where a container runs that is about to start. If it has CPUs of its own it waits until all others have left them: after
// an error the container must not start. Until the next call of Placed the container counts as started.
func (m *Manager) Place(ctx context.Context, uid types.UID, container string) (Pin, error) {
	pin := m.Move(uid, container)
	if !pin.Exclusive {
		return pin, nil
	}
	return pin, m.waitAlone(ctx, uid, container)
}

// Move returns where a container runs that is about to be moved there. Until the next call of Placed it counts as being there as well as
// where it was.
func (m *Manager) Move(uid types.UID, container string) Pin {
	m.placing.Lock()
	defer m.placing.Unlock()
	pin := m.Pin(uid, container)
	if m.cpus.Static() {
		set, _ := m.cpus.Of(string(uid), container)
		if m.placed.pods[uid] == nil {
			m.placed.pods[uid] = map[string]cpuset.CPUSet{}
		}
		m.placed.pods[uid][container] = set.Union(m.placed.pods[uid][container])
	}
	return pin
}

// waitAlone waits until no other container may be on the CPUs of a container. It gives up on Pods that have no worker: their source does not
// respond, and it may be this container for which it waits.
func (m *Manager) waitAlone(ctx context.Context, uid types.UID, container string) error {
	own, _ := m.cpus.Of(string(uid), container)
	deadline := m.clock.NewTimer(aloneTimeout)
	defer deadline.Stop()
	for late := false; ; {
		changed, err := m.checkAlone(own, uid, late)
		if err == nil {
			return nil
		}
		if late {
			return fmt.Errorf("container %q is to have CPUs %s for itself: %w", container, own, err)
		}
		select {
		case <-changed:
		case <-deadline.C():
			late = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// checkAlone returns who else may be on the CPUs, and a channel that is closed when that may have changed.
func (m *Manager) checkAlone(cpus cpuset.CPUSet, self types.UID, late bool) (changed <-chan struct{}, err error) {
	m.placing.Lock()
	defer m.placing.Unlock()
	return m.placed.changed, m.notAlone(cpus, self, late && !m.placed.complete)
}

// notAlone returns who else may be on the CPUs: a container that has none of its own, one of another Pod, or, unless read Pods suffice, an
// unread Pod. The caller holds placing.
func (m *Manager) notAlone(cpus cpuset.CPUSet, self types.UID, readSuffice bool) error {
	if !m.placed.listed {
		return errNotListed
	}
	for uid, containers := range m.placed.pods {
		for name, set := range containers {
			_, exclusive := m.cpus.Of(string(uid), name)
			if exclusive && uid == self || set.Intersection(cpus).IsEmpty() {
				continue // of its own Pod's containers those that run later may have the same CPUs
			}
			return fmt.Errorf("container %q of Pod %s still runs on them", name, uid)
		}
	}
	for uid := range m.placed.unread {
		if !readSuffice && uid != self {
			return fmt.Errorf("the containers of Pod %s, which may be on them, have not been read yet", uid)
		}
	}
	return nil
}

// Placed records on which CPUs the containers of a Pod are that run or may run, as its worker has set them; "" stands for all. Those in
// transition, which start or move, stay where Place and Move have recorded them, too.
func (m *Manager) Placed(uid types.UID, running map[string]string, inTransition func(container string) bool) {
	if !m.cpus.Static() {
		return
	}
	m.placing.Lock()
	defer m.placing.Unlock()
	if delete(m.placed.unread, uid); !m.placed.listed {
		m.placed.read[uid] = true
	}
	next := map[string]cpuset.CPUSet{}
	for name, set := range m.placed.pods[uid] {
		if inTransition(name) {
			next[name] = set
		}
	}
	for name, text := range running {
		set, err := cpulist.Parse(text)
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
