package devices

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
)

// ahead is the allocation of a Pod's devices while its sandbox is created.
type ahead struct {
	cancel context.CancelFunc
	// done is closed when all devices were requested.
	done chan struct{}
	// errs are why containers did not get their devices, by the container's name, as soon as done is closed. Prepare returns each of
	// them once, and requests these devices again when it is called again.
	errs map[string]error
}

// order is the request for the devices of one grant.
type order struct {
	container, resource string
	grant               *grant
	count               int
}

// AllocateAhead begins to have the plugins allocate what the containers of an admitted Pod were given, and does not wait: the sandbox is
// created meanwhile. Prepare waits for it. It may be called again.
func (m *Manager) AllocateAhead(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	uid := string(pod.UID)
	if m.running == nil || m.running.Err() != nil || m.ahead[uid] != nil {
		return
	}
	orders := m.orders(pod)
	if len(orders) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(m.running)
	a := &ahead{cancel: cancel, done: make(chan struct{}), errs: map[string]error{}}
	m.ahead[uid] = a
	m.connections.Go(contain.Guard("devices.ahead", podutil.Name(pod), func() { m.allocateAhead(ctx, a, orders) }))
}

// orders returns what the plugins have not allocated yet for the containers of a Pod. The caller holds mu.
func (m *Manager) orders(pod *corev1.Pod) []order {
	var orders []order
	for c := range podutil.Containers(&pod.Spec) {
		requests := m.requests(pod, c)
		for _, name := range sortedKeys(requests) {
			if g := m.given.get(string(pod.UID), c.Name, name); g != nil && g.response == nil {
				orders = append(orders, order{container: c.Name, resource: name, grant: g, count: requests[name]})
			}
		}
	}
	return orders
}

func (m *Manager) allocateAhead(ctx context.Context, a *ahead, orders []order) {
	defer close(a.done)
	for _, o := range orders {
		if a.errs[o.container] == nil {
			a.errs[o.container] = m.allocate(ctx, o.resource, o.grant, o.count)
		}
	}
	_ = m.save() // Prepare tries it again
}

// awaitAhead waits for what was requested ahead for a container, and returns why that failed, once.
func (m *Manager) awaitAhead(ctx context.Context, uid, container string) error {
	m.mu.Lock()
	a := m.ahead[uid]
	m.mu.Unlock()
	if a == nil {
		return nil
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := a.errs[container]
	delete(a.errs, container)
	return err
}
