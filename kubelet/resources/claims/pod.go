package claims

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// reference is a ResourceClaim of a Pod.
type reference struct {
	name string
	// created says that the claim was created for this Pod, from a template.
	created bool
}

// references returns the ResourceClaims of a Pod.
func references(pod *corev1.Pod) ([]reference, error) {
	var all []reference
	for i := range pod.Spec.ResourceClaims {
		entry := &pod.Spec.ResourceClaims[i]
		name, err := claimName(pod, entry)
		if err != nil {
			return nil, err
		}
		if name != "" && !slices.ContainsFunc(all, func(r reference) bool { return r.name == name }) {
			all = append(all, reference{name, entry.ResourceClaimName == nil})
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		all = append(all, reference{name: extended.ResourceClaimName})
	}
	return all, nil
}

// claimName returns the name of the ResourceClaim of an entry of the Pod's spec; empty if none was needed.
func claimName(pod *corev1.Pod, entry *corev1.PodResourceClaim) (string, error) {
	if entry.ResourceClaimName != nil {
		return *entry.ResourceClaimName, nil
	}
	for _, created := range pod.Status.ResourceClaimStatuses {
		if created.Name == entry.Name {
			if created.ResourceClaimName == nil {
				return "", nil
			}
			return *created.ResourceClaimName, nil
		}
	}
	return "", fmt.Errorf("pod %s/%s: ResourceClaim of %q was not created yet", pod.Namespace, pod.Name, entry.Name)
}

// Device is a device that a driver has prepared for a claim.
type Device struct {
	Claim, Namespace, Driver, Pool, Device string
	CDIDevices                             []string
	// ShareID names the share of a device that several claims have parts of; nil for all of it.
	ShareID *types.UID
}

// Of returns the devices of a container's claims, as far as they are prepared, sorted by claim and driver.
func (m *Manager) Of(pod *corev1.Pod, c *corev1.Container) []Device {
	out, _ := m.devices(pod, c)
	return out
}

// CDIDevices returns the CDI devices of a container. All its claims have to be prepared.
func (m *Manager) CDIDevices(pod *corev1.Pod, c *corev1.Container) ([]*runtimeapi.CDIDevice, error) {
	list, err := m.devices(pod, c)
	if err != nil {
		return nil, err
	}
	var out []*runtimeapi.CDIDevice
	seen := map[string]bool{}
	for _, d := range list {
		for _, id := range d.CDIDevices {
			if !seen[id] {
				seen[id] = true
				out = append(out, &runtimeapi.CDIDevice{Name: id})
			}
		}
	}
	return out, nil
}

// devices returns the devices of a container's claims. The error names a claim that is not prepared.
func (m *Manager) devices(pod *corev1.Pod, c *corev1.Container) (out []Device, err error) {
	wanted, err := wants(pod, c)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		held := m.claims[key{pod.Namespace, name}]
		if held == nil {
			err = fmt.Errorf("container %q: ResourceClaim %s/%s is not prepared", c.Name, pod.Namespace, name)
			continue
		}
		for _, driver := range held.driverNames() {
			for _, d := range held.DriverState[driver].Devices {
				if d.serves(wanted[name]) {
					out = append(out, Device{
						Claim: name, Namespace: held.Namespace, Driver: driver, Pool: d.PoolName, Device: d.DeviceName, CDIDevices: d.CDIDeviceIDs,
						ShareID: d.ShareID,
					})
				}
			}
		}
	}
	return out, err
}

// wants returns which requests of which claims a container has; an empty request stands for all of the claim.
func wants(pod *corev1.Pod, c *corev1.Container) (map[string][]string, error) {
	out := map[string][]string{}
	for _, of := range c.Resources.Claims {
		for i := range pod.Spec.ResourceClaims {
			if pod.Spec.ResourceClaims[i].Name != of.Name {
				continue
			}
			name, err := claimName(pod, &pod.Spec.ResourceClaims[i])
			if err != nil {
				return nil, err
			}
			if name != "" {
				out[name] = append(out[name], of.Request)
			}
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		for _, mapping := range extended.RequestMappings {
			amount, requested := c.Resources.Requests[corev1.ResourceName(mapping.ResourceName)]
			if mapping.ContainerName == c.Name && requested && !amount.IsZero() {
				out[extended.ResourceClaimName] = append(out[extended.ResourceClaimName], mapping.RequestName)
			}
		}
	}
	return out, nil
}

// serves reports whether the device is for one of the requests. A device without requests is for all of them; of a request that is a
// list of alternatives, "gpu/large", the first part counts.
func (d device) serves(requests []string) bool {
	if len(d.RequestNames) == 0 || slices.Contains(requests, "") {
		return true
	}
	return slices.ContainsFunc(d.RequestNames, func(name string) bool {
		main, _, _ := strings.Cut(name, "/")
		return slices.Contains(requests, name) || slices.Contains(requests, main)
	})
}
