package claims

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
)

// Prepare has the drivers prepare the claims of a Pod. It may be called again.
func (m *Manager) Prepare(ctx context.Context, pod *corev1.Pod) error {
	refs, err := references(pod)
	if err != nil || len(refs) == 0 {
		return err
	}
	start := m.deps.Clock.Now()
	if err = m.prepareAll(ctx, pod, refs); err != nil {
		err = fmt.Errorf("prepare dynamic resources: %w", err)
	}
	m.metrics.observe("PrepareResources", m.deps.Clock.Since(start), err)
	if err == nil {
		m.found(pod.UID)
	}
	return err
}

// prepareAll checks all claims of a Pod before it records one: a Pod with a driver that was never installed on the node has nothing to
// unprepare then, and can end.
func (m *Manager) prepareAll(ctx context.Context, pod *corev1.Pod, refs []reference) error {
	objects := make([]*resourceapi.ResourceClaim, 0, len(refs))
	for _, ref := range refs {
		object, err := m.fetch(ctx, pod, ref.name)
		if err == nil {
			err = check(pod, object, ref.created)
		}
		if err == nil {
			err = m.checkDrivers(object)
		}
		if err != nil {
			return err
		}
		objects = append(objects, object)
	}
	for _, object := range objects {
		if err := m.locked(ctx, keyOf(object), func() error { return m.prepare(ctx, pod, object) }); err != nil {
			return err
		}
	}
	return nil
}

func keyOf(object *resourceapi.ResourceClaim) key { return key{object.Namespace, object.Name} }

func (m *Manager) fetch(ctx context.Context, pod *corev1.Pod, name string) (*resourceapi.ResourceClaim, error) {
	object, err := m.deps.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("fetch ResourceClaim %s: %w", name, err)
	}
	return object, nil
}

// locked calls do while no driver is asked about the claim.
func (m *Manager) locked(ctx context.Context, k key, do func() error) error {
	unlock, err := m.lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	return do()
}

// check returns an error unless the claim is the Pod's to use. One that was created for a Pod belongs to that Pod, but others that name it may
// share it.
func check(pod *corev1.Pod, object *resourceapi.ResourceClaim, created bool) error {
	if created && !metav1.IsControlledBy(object, pod) {
		return fmt.Errorf("ResourceClaim %s/%s was not created for pod %s/%s", object.Namespace, object.Name, pod.Namespace, pod.Name)
	}
	reserved := slices.ContainsFunc(object.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
	if !reserved {
		return fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, object.Name, object.UID)
	}
	if object.Status.Allocation == nil {
		return fmt.Errorf("ResourceClaim %s: it is not allocated", object.Name)
	}
	return nil
}

// checkDrivers returns an error if a driver of the claim has not registered, unless the claim is prepared.
func (m *Manager) checkDrivers(object *resourceapi.ResourceClaim) error {
	if m.isPrepared(object) {
		return nil
	}
	for _, result := range object.Status.Allocation.Devices.Results {
		if _, err := m.client(result.Driver); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) isPrepared(object *resourceapi.ResourceClaim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := m.claims[keyOf(object)]
	return held != nil && held.prepared && held.ClaimUID == object.UID
}

// prepare has the drivers prepare a claim of the Pod. The caller has locked it.
func (m *Manager) prepare(ctx context.Context, pod *corev1.Pod, object *resourceapi.ResourceClaim) error {
	c, err := m.refer(keyOf(object), object, pod.UID)
	if err != nil || c.prepared {
		return err
	}
	for _, name := range c.driverNames() {
		devices, err := m.ask(ctx, name, c)
		if err != nil {
			return err
		}
		m.mu.Lock()
		c.DriverState[name] = driverState{Devices: devices}
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range c.DriverState {
		if d := m.drivers[name]; d != nil && d.watch != nil {
			m.scheduleExpiry(name, d.watch)
		}
	}
	if err := m.save(); err != nil {
		return err // the next attempt asks the drivers once more
	}
	c.prepared = true
	return nil
}

// ask has a driver prepare a claim.
func (m *Manager) ask(ctx context.Context, name string, c *claim) ([]device, error) {
	client, err := m.client(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := client.NodePrepareResources(ctx, &draapi.NodePrepareResourcesRequest{Claims: []*draapi.Claim{c.reference()}})
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources of driver %s: %w", name, err)
	}
	result := resp.Claims[string(c.ClaimUID)]
	if result == nil {
		return nil, fmt.Errorf("NodePrepareResources of driver %s skipped ResourceClaim %s", name, c.ClaimName)
	}
	if result.Error != "" {
		return nil, fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", c.ClaimName, result.Error)
	}
	var devices []device
	for _, r := range result.Devices {
		devices = append(devices, device{
			PoolName: r.PoolName, DeviceName: r.DeviceName, ShareID: (*types.UID)(r.ShareId), RequestNames: r.RequestNames, CDIDeviceIDs: r.CdiDeviceIds,
		})
	}
	return devices, nil
}
