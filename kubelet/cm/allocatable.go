package cm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/quantity"
)

// Values of Enforcement.Enforce, which are those of enforceNodeAllocatable in KubeletConfiguration.
const (
	EnforceNone                       = "none"
	EnforcePods                       = "pods"
	EnforceSystemReserved             = "system-reserved"
	EnforceSystemReservedCompressible = "system-reserved-compressible"
	EnforceKubeReserved               = "kube-reserved"
	EnforceKubeReservedCompressible   = "kube-reserved-compressible"
)

// Enforcement says which resources are reserved, and which cgroups enforce that.
type Enforcement struct {
	// KubeReserved and SystemReserved are subtracted from what Pods may use.
	KubeReserved, SystemReserved corev1.ResourceList
	// Enforce lists Enforce… values; nil means EnforcePods alone.
	Enforce []string
	// KubeReservedCgroup and SystemReservedCgroup are the cgroups of the node's own daemons. They must exist if they are
	// enforced.
	KubeReservedCgroup, SystemReservedCgroup string
}

// Enforces reports whether the value is configured.
func (e *Enforcement) Enforces(value string) bool {
	if e.Enforce == nil {
		return value == EnforcePods
	}
	return slices.Contains(e.Enforce, value)
}

// Validate returns an error that names the field that is wrong.
func (e *Enforcement) Validate() error {
	const field = "enforceNodeAllocatable"
	known := []string{
		EnforceNone, EnforcePods, EnforceSystemReserved, EnforceSystemReservedCompressible, EnforceKubeReserved,
		EnforceKubeReservedCompressible,
	}
	for i, value := range e.Enforce {
		switch {
		case !slices.Contains(known, value):
			return fmt.Errorf("%s: %q is not one of %s", field, value, strings.Join(known, ", "))
		case slices.Contains(e.Enforce[:i], value):
			return fmt.Errorf("%s: %q is listed twice", field, value)
		case value == EnforceNone && len(e.Enforce) > 1:
			return fmt.Errorf("%s: %q excludes all other values", field, value)
		}
	}
	var errs []error
	for _, r := range e.reservations() {
		if e.Enforces(r.all) && e.Enforces(r.compressible) {
			errs = append(errs, fmt.Errorf("%s: %s and %s exclude each other", field, r.all, r.compressible))
		}
		if _, enforced := r.limits(e); enforced && r.cgroup == "" {
			errs = append(errs, fmt.Errorf("%s: %s needs %s, the cgroup to limit", field, r.all, r.cgroupField))
		}
	}
	return errors.Join(errs...)
}

// reservation is what is reserved for some of the node's own daemons, and the cgroup that they run in.
type reservation struct {
	all, compressible, cgroupField, title string
	cgroup                                string
	amounts                               corev1.ResourceList
}

func (e *Enforcement) reservations() []reservation {
	return []reservation{
		{EnforceSystemReserved, EnforceSystemReservedCompressible, "systemReservedCgroup", "System", e.SystemReservedCgroup,
			e.SystemReserved},
		{EnforceKubeReserved, EnforceKubeReservedCompressible, "kubeReservedCgroup", "Kube", e.KubeReservedCgroup,
			e.KubeReserved},
	}
}

// limits returns the limits of the reservation's cgroup, and whether it is to be limited at all.
func (r *reservation) limits(e *Enforcement) (amounts corev1.ResourceList, enforced bool) {
	switch {
	case e.Enforces(r.all):
		return r.amounts, true
	case e.Enforces(r.compressible):
		return corev1.ResourceList{corev1.ResourceCPU: r.amounts[corev1.ResourceCPU]}, true
	default:
		return nil, false
	}
}

// ParseReserved parses reserved resources by name: cpu, memory, ephemeral-storage and pid. An error begins with the name of
// the field.
func ParseReserved(field string, in map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for key, value := range in {
		switch name := corev1.ResourceName(key); name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, resourcePID:
			amount, err := quantity.Parse(value)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: quantity %q: %w", field, key, value, err)
			}
			if amount.Sign() < 0 {
				return nil, fmt.Errorf("%s: %s: quantity %q is negative", field, key, value)
			}
			out[name] = amount
		default:
			return nil, fmt.Errorf("%s: %q cannot be reserved: only cpu, memory, ephemeral-storage and pid can", field, key)
		}
	}
	return out, nil
}
