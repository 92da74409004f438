package claims

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
)

// Retain has the claims of Pods unprepared that are not on the node any more, as soon as their drivers are registered.
func (m *Manager) Retain(has func(uid types.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.claims {
		for uid := range c.PodUIDs {
			if uid := types.UID(uid); !has(uid) {
				m.orphans[uid] = true
			}
		}
	}
	m.wake.Notify()
}

// unprepareOrphans unprepares the claims of Pods that ended while no kubelet ran.
func (m *Manager) unprepareOrphans(ctx context.Context) {
	m.mu.Lock()
	orphans := slices.Collect(maps.Keys(m.orphans))
	m.mu.Unlock()
	for _, uid := range orphans {
		err := contain.Do("claims.unprepare", string(uid), func() error { return m.Unprepare(ctx, uid) })
		if err != nil {
			m.deps.Logger.Warn("failed to unprepare the claims of a Pod that has ended; trying again when a driver registers", "uid", uid, "error", err)
			continue
		}
		m.mu.Lock()
		delete(m.orphans, uid)
		m.mu.Unlock()
	}
}

// Readmit reports a Pod that an earlier process has admitted. If a damaged state file was set aside, its claims may be prepared: they are
// prepared once more, which drivers have to allow, so that its containers can start again, and the drivers are asked to unprepare them at
// its end.
func (m *Manager) Readmit(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != nil && podutil.HasClaims(pod) {
		m.lost[pod.UID] = pod
		m.wake.Notify()
	}
}

// Recover prepares the claims of a Pod again that a damaged state file may have had; others are left alone.
func (m *Manager) Recover(ctx context.Context, uid types.UID) error {
	pod := m.lostPod(uid)
	if pod == nil {
		return nil
	}
	return m.Prepare(ctx, pod)
}

func (m *Manager) lostPod(uid types.UID) *corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost[uid]
}

// found says that the claims of a Pod are known again.
func (m *Manager) found(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.lost, uid)
}

// prepareLost prepares the claims of all such Pods.
func (m *Manager) prepareLost(ctx context.Context) {
	m.mu.Lock()
	uids := slices.Collect(maps.Keys(m.lost))
	m.mu.Unlock()
	for _, uid := range uids {
		if err := contain.Do("claims.recover", string(uid), func() error { return m.Recover(ctx, uid) }); err != nil {
			m.deps.Logger.Warn("failed to prepare the claims of a Pod again after a damaged state file; trying again when a driver registers",
				"uid", uid, "error", err)
		}
	}
}

// recall records what claims a Pod has that ends, if a damaged state file may have had them, so that they are unprepared. Claims that
// are not the Pod's any more are omitted.
func (m *Manager) recall(ctx context.Context, uid types.UID) error {
	pod := m.lostPod(uid)
	if pod == nil {
		return nil
	}
	refs, err := references(pod)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		object, err := m.fetch(ctx, pod, ref.name)
		switch {
		case apierrors.IsNotFound(err) || err == nil && check(pod, object, ref.created) != nil:
			continue
		case err == nil:
			err = m.locked(ctx, keyOf(object), func() error {
				_, err := m.refer(keyOf(object), object, uid)
				return err
			})
		}
		if err != nil {
			return err
		}
	}
	m.found(uid)
	return nil
}
