package resources

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/resources/devices"
)

// PrepareContainer makes ready what a container has for itself, before each start of it, and returns what it gets with that; nil for
// nothing. A *rejection.Error says that the container can never start.
func (m *Manager) PrepareContainer(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*devices.Options, error) {
	out, err := m.devices.Prepare(ctx, pod, c)
	if err != nil || !podutil.HasClaims(pod) {
		return out, err
	}
	if err := m.claims.Recover(ctx, pod.UID); err != nil {
		return out, err
	}
	claimed, err := m.claims.CDIDevices(pod, c)
	if err != nil || len(claimed) == 0 {
		return out, err
	}
	if out == nil {
		out = &devices.Options{}
	}
	for _, d := range claimed {
		if !slices.ContainsFunc(out.CDIDevices, func(have *runtimeapi.CDIDevice) bool { return have.Name == d.Name }) {
			out.CDIDevices = append(out.CDIDevices, d)
		}
	}
	return out, nil
}

// PreparePod has the drivers prepare the claims of a Pod, before its sandbox is created, and begins to have the device plugins allocate its
// devices. It may be called again. A *rejection.Error says that the Pod can never start.
func (m *Manager) PreparePod(ctx context.Context, pod *corev1.Pod) error {
	if err := m.devices.PreparePod(string(pod.UID)); err != nil {
		return err
	}
	m.devices.AllocateAhead(pod)
	if !podutil.HasClaims(pod) {
		return nil
	}
	return m.claims.Prepare(ctx, pod)
}

// UnpreparePod has the drivers unprepare the claims of a Pod whose containers have ended. It may be called again.
func (m *Manager) UnpreparePod(ctx context.Context, uid types.UID) error {
	return m.claims.Unprepare(ctx, uid)
}

// Manages reports whether a resource is a device plugin's, so that Admit rejects Pods for which there are too few devices. It says more
// than a count does: which are free, and that those that an earlier process has given to a Pod are not healthy.
func (m *Manager) Manages(name corev1.ResourceName) bool { return m.devices.Manages(string(name)) }

// First reports whether this is the first kubelet of the machine: no device plugin has registered before.
func (m *Manager) First() bool { return m.devices.First() }

// Devices returns how many devices of each resource the node has, and how many of them containers may get.
func (m *Manager) Devices() (capacity, allocatable corev1.ResourceList) { return m.devices.Resources() }

// DeviceStatus returns the health of a container's devices, those of plugins and those of claims, for the status of its Pod.
func (m *Manager) DeviceStatus(pod *corev1.Pod, container string) []corev1.ResourceStatus {
	out := m.devices.Status(string(pod.UID), container)
	if len(pod.Spec.ResourceClaims) == 0 {
		return out
	}
	if c, _ := podutil.FindContainer(&pod.Spec, container); c != nil {
		out = append(out, m.claims.Status(pod, c)...)
	}
	return out
}
