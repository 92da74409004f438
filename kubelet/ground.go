package kubelet

import (
	"context"
	"fmt"

	"github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/cri"
	"github.com/berth-dev/berth/kubelet/node"
)

// ground makes the control groups above all Pods, once the runtime has said who makes such groups: groups of another
// name would be in the way of nobody, and bound nobody. It is called each time that the runtime can be reached, by one
// goroutine; no Pod is prepared before it was done once. A runtime that went away again is no error.
func (k *Kubelet) ground(ctx context.Context) error {
	driver, err := k.askDriver(ctx)
	if cri.IsUnavailable(err) || ctx.Err() != nil {
		return nil
	}
	select {
	case <-k.grounded:
		if used := k.cgroups.Driver(); driver != used {
			k.deps.Logger.Error("the container runtime has changed its cgroup driver: containers may be left out of their "+
				"Pods' limits until the node agent is started again", "driver", driver, "used", used)
		}
		return nil
	default:
	}
	k.cgroups.SetDriver(driver)
	if err := k.cgroups.EnsureRoot(ctx); err != nil {
		return fmt.Errorf("make control groups of pods below %q with driver %s: %w", k.cfg.CgroupRoot, driver, err)
	}
	if err := k.enforceReserved(ctx); err != nil {
		return err
	}
	close(k.grounded)
	return nil
}

// askDriver is who makes control groups: the runtime's answer, or what is configured if it has none. An error is
// returned with the configured one.
func (k *Kubelet) askDriver(ctx context.Context) (cm.Driver, error) {
	configured := k.cfg.CgroupDriver
	if configured == "" {
		configured = cm.DriverCgroupfs
	}
	resp, err := k.runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		if !cri.IsUnimplemented(err) {
			k.deps.Logger.Warn("the container runtime does not say its cgroup driver; the configured one is used",
				"driver", configured, "error", err)
		}
		return configured, err
	}
	if resp.Linux == nil {
		return configured, nil
	}
	said := cm.DriverSystemd
	if resp.Linux.CgroupDriver == runtimeapi.CgroupDriver_CGROUPFS {
		said = cm.DriverCgroupfs
	}
	if said != configured && k.cfg.CgroupDriver != "" {
		k.deps.Logger.Warn("the container runtime's cgroup driver is used, not the configured one",
			"driver", said, "configured", configured)
	}
	return said, nil
}

// awaitGround waits until the control groups above all Pods are there.
func (k *Kubelet) awaitGround(ctx context.Context) error {
	select {
	case <-k.grounded:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the container runtime to say its cgroup driver: %w", context.Cause(ctx))
	}
}

// checkGround refuses a machine that the configuration does not want.
func (k *Kubelet) checkGround() error {
	unified := cgroups.IsCgroup2UnifiedMode()
	if k.cfg.FailCgroupV1 && !unified {
		return fmt.Errorf("failCgroupV1: this machine has control groups of version 1 only: boot it with version 2, " +
			"or set failCgroupV1 to false")
	}
	if one := k.cfg.SingleProcessOOMKill; one != nil && !*one && !unified {
		return fmt.Errorf("singleProcessOOMKill: false needs control groups of version 2, which this machine does not have")
	}
	if !k.cfg.FailSwapOn {
		return nil
	}
	facts, err := k.machine.Info()
	if err != nil {
		return err
	}
	if facts.Swap > 0 {
		return fmt.Errorf("failSwapOn: this machine has %d bytes of swap: turn it off (swapoff -a), or set failSwapOn to false",
			facts.Swap)
	}
	return nil
}

// oldGroups says once where the machine has the older control groups only. They are used all the same: a machine that
// has nothing else runs Pods too.
func (k *Kubelet) oldGroups(unified bool) {
	if unified {
		return
	}
	k.deps.Recorder.Event(node.Reference(k.cfg.NodeName), corev1.EventTypeWarning, "CgroupV1",
		"This machine has control groups of version 1 only, which Kubernetes is about to give up: boot it with version 2")
}
