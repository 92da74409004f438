package kubelet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/node"
)

// The words of Config.EnforceNodeAllocatable, which are upstream's.
const (
	EnforceNone                       = "none"
	EnforcePods                       = "pods"
	EnforceSystemReserved             = "system-reserved"
	EnforceSystemReservedCompressible = "system-reserved-compressible"
	EnforceKubeReserved               = "kube-reserved"
	EnforceKubeReservedCompressible   = "kube-reserved-compressible"
)

// enforceEvery is how long after a failure the bounds of all Pods are set again: memory that is in use cannot be taken
// away, and the kernel does not tell when it is given back.
const enforceEvery = time.Minute

const pids = corev1.ResourceName("pid")

// enforces reports whether the word is among those configured; without any, it is pods alone.
func (c *Config) enforces(word string) bool {
	if c.EnforceNodeAllocatable == nil {
		return word == EnforcePods
	}
	return slices.Contains(c.EnforceNodeAllocatable, word)
}

// CheckEnforcement says what is wrong with the configuration of reserved resources.
func (c *Config) CheckEnforcement() error {
	const field = "enforceNodeAllocatable"
	known := []string{
		EnforceNone, EnforcePods, EnforceSystemReserved, EnforceSystemReservedCompressible, EnforceKubeReserved,
		EnforceKubeReservedCompressible,
	}
	for i, word := range c.EnforceNodeAllocatable {
		switch {
		case !slices.Contains(known, word):
			return fmt.Errorf("%s: %q is not one of %s", field, word, strings.Join(known, ", "))
		case slices.Contains(c.EnforceNodeAllocatable[:i], word):
			return fmt.Errorf("%s: %q stands twice", field, word)
		case word == EnforceNone && len(c.EnforceNodeAllocatable) > 1:
			return fmt.Errorf("%s: %q allows nothing beside it", field, word)
		}
	}
	for _, part := range c.reservations() {
		if c.enforces(part.whole) && c.enforces(part.compressible) {
			return fmt.Errorf("%s: %s and %s exclude each other", field, part.whole, part.compressible)
		}
		if _, wanted := part.bounds(c); wanted && part.group == "" {
			return fmt.Errorf("%s: %s needs %s, the control group to bound", field, part.whole, part.groupField)
		}
	}
	return nil
}

// reservation is what is kept for some of the node's own programs, and the group that they run in.
type reservation struct {
	whole, compressible, groupField, title string
	group                                  string
	amounts                                corev1.ResourceList
}

func (c *Config) reservations() []reservation {
	return []reservation{
		{EnforceSystemReserved, EnforceSystemReservedCompressible, "systemReservedCgroup", "System", c.SystemReservedCgroup,
			c.SystemReserved},
		{EnforceKubeReserved, EnforceKubeReservedCompressible, "kubeReservedCgroup", "Kube", c.KubeReservedCgroup,
			c.KubeReserved},
	}
}

// bounds are the amounts that the group is to be held to, if it is to be held at all.
func (r *reservation) bounds(c *Config) (amounts corev1.ResourceList, wanted bool) {
	switch {
	case c.enforces(r.whole):
		return r.amounts, true
	case c.enforces(r.compressible):
		return corev1.ResourceList{corev1.ResourceCPU: r.amounts[corev1.ResourceCPU]}, true
	default:
		return nil, false
	}
}

// enforceReserved holds the node's own programs to what is reserved for them, where that was asked for. Nobody asks for
// it by mistake, so a failure is an error.
func (k *Kubelet) enforceReserved(ctx context.Context) error {
	ref := node.Reference(k.cfg.NodeName)
	for _, part := range k.cfg.reservations() {
		amounts, wanted := part.bounds(&k.cfg)
		if !wanted {
			continue
		}
		if err := k.cgroups.EnforceReserved(ctx, part.group, amounts); err != nil {
			k.deps.Recorder.Eventf(ref, corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement",
				"Failed to enforce %s Reserved Cgroup Limits on %q: %v", part.title, part.group, err)
			return fmt.Errorf("enforceNodeAllocatable: hold %s %q to its reservation: %w", part.groupField, part.group, err)
		}
		k.deps.Recorder.Eventf(ref, corev1.EventTypeNormal, "NodeAllocatableEnforced",
			"Updated limits on %s reserved cgroup %s", strings.ToLower(part.title), part.group)
	}
	return nil
}

// keepAllocatable bounds what all Pods together may use, so that what is reserved is left for others. A machine on which
// that cannot be is used all the same; it is tried again until it can.
func (k *Kubelet) keepAllocatable(ctx context.Context) error {
	if !k.cfg.enforces(EnforcePods) {
		return nil
	}
	if k.awaitGround(ctx) != nil {
		return nil
	}
	ref := node.Reference(k.cfg.NodeName)
	for {
		bounds, err := k.bounds()
		if err == nil {
			err = k.cgroups.EnforceAllocatable(ctx, bounds)
		}
		if err == nil {
			k.deps.Recorder.Event(ref, corev1.EventTypeNormal, "NodeAllocatableEnforced",
				"Updated Node Allocatable limit across pods")
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		k.deps.Logger.Warn("bounding all pods together failed", "error", err, "retry", enforceEvery)
		k.deps.Recorder.Eventf(ref, corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement",
			"Failed to update Node Allocatable Limits %q: %v", k.cfg.CgroupRoot, err)
		select {
		case <-k.deps.Clock.After(enforceEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

// bounds are what all Pods together may use: the node's capacity without what is reserved.
func (k *Kubelet) bounds() (corev1.ResourceList, error) {
	capacity, _, err := k.node.Resources()
	if err != nil {
		return nil, err
	}
	usage, err := k.machine.Usage()
	if err != nil {
		return nil, err
	}
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: capacity[corev1.ResourceCPU], corev1.ResourceMemory: capacity[corev1.ResourceMemory],
	}
	if usage.PIDCapacity > 0 {
		amounts[pids] = *resource.NewQuantity(usage.PIDCapacity, resource.DecimalSI)
	}
	for name, all := range amounts {
		left := all.DeepCopy()
		for _, reserved := range []corev1.ResourceList{k.cfg.KubeReserved, k.cfg.SystemReserved} {
			left.Sub(reserved[name])
		}
		if left.Sign() <= 0 {
			return nil, fmt.Errorf("kubeReserved and systemReserved leave nothing of the node's %s (%s) to Pods", name,
				all.String())
		}
		amounts[name] = left
	}
	return amounts, nil
}
