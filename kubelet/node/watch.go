package node

import (
	"context"
	"fmt"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/apimachinery/lease"

	"github.com/berth-dev/berth/internal/listwatch"
)

// watch follows the Node object until ctx ends: other clients modify and may even delete it.
func (m *Manager) watch(ctx context.Context) error {
	own := fields.OneTermEqualSelector("metadata.name", m.config.Name).String()
	changed := func(obj any) {
		if node, ok := obj.(*corev1.Node); ok && node.Name == m.config.Name {
			m.setNode(node)
			m.wake.Notify()
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listwatch.Select(m.deps.Client.CoreV1().Nodes(), m.deps.Client, func(options *metav1.ListOptions) {
			options.FieldSelector = own
		}),
		ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    changed,
			UpdateFunc: func(_, obj any) { changed(obj) },
			DeleteFunc: m.markDeleted,
		},
	})
	informer.RunWithContext(ctx)
	return nil
}

// setNode stores the newest Node; an older one, from a slower source, is ignored.
func (m *Manager) setNode(node *corev1.Node) {
	var wasUnschedulable bool
	newer := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.node != nil && m.node.UID == node.UID && olderVersion(node, m.node) {
			return false
		}
		wasUnschedulable = m.node != nil && m.node.Spec.Unschedulable
		m.node, m.deleted = node, false
		return true
	}()
	if !newer {
		return
	}
	if wasUnschedulable != node.Spec.Unschedulable {
		m.events.recordSchedulable(node.Spec.Unschedulable)
	}
	m.deps.OnNode(node)
}

// rereadNode reads the Node from the API server after a write that failed: its watch may be behind that write.
func (m *Manager) rereadNode(ctx context.Context) error {
	node, err := m.deps.Client.CoreV1().Nodes().Get(ctx, m.config.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %q after a write that failed: %w", m.config.Name, err)
	}
	m.setNode(node)
	m.lastWrite.unsure = false
	return nil
}

// markDeleted records that the Node was deleted, unless another one has replaced it already.
func (m *Manager) markDeleted(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	m.mu.Lock()
	if m.node != nil && m.node.UID == node.UID {
		m.deleted = true
	}
	m.mu.Unlock()
	m.wake.Notify()
}

// olderVersion reports whether a is an older version of the object than b. Versions that are not numbers, as fakes use
// them, are never older.
func olderVersion(a, b *corev1.Node) bool {
	va, errA := strconv.ParseUint(a.ResourceVersion, 10, 64)
	vb, errB := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errA == nil && errB == nil && va < vb
}

// renewLease renews the lease until ctx ends.
func (m *Manager) renewLease(ctx context.Context) error {
	seconds := int32(m.config.LeaseDuration.Seconds())
	lease.NewController(m.deps.Clock, m.deps.LeaseClient, m.config.Name, seconds, func() {
		m.deps.Logger.Warn("failed to renew node lease; retrying", "node", m.config.Name)
	}, m.config.LeaseDuration/4, m.config.Name, corev1.NamespaceNodeLease, m.ownLease).Run(ctx)
	return nil
}

// ownLease makes the Node the owner of its lease, so that both are deleted together.
func (m *Manager) ownLease(l *coordinationv1.Lease) error {
	node := m.Node()
	if node == nil || len(l.OwnerReferences) > 0 {
		return nil
	}
	l.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
	}}
	return nil
}
