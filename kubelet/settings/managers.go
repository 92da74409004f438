package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/kubelet/resources"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/memory"
)

// policyStatic is the policy of the CPU manager that gives containers CPUs of their own.
const policyStatic = "static"

// optionDistribute is the option of the CPU manager that is in beta.
const optionDistribute = "distribute-cpus-across-numa"

// Paths of the fields with options.
const (
	cpuOptionsPath      = "cpuManagerPolicyOptions"
	topologyOptionsPath = "topologyManagerPolicyOptions"
)

// convertManagers returns what the managers of resources do. The error names each option that they do not have.
func convertManagers(c *Configuration) (resources.Config, error) {
	out := resources.Config{
		StaticCPUs: c.CPUManagerPolicy == policyStatic, StaticMemory: c.MemoryManagerPolicy == kubeletconfig.StaticMemoryManagerPolicy,
		Policy:   hints.Policy(c.TopologyManagerPolicy),
		PodScope: c.TopologyManagerScope == kubeletconfig.PodTopologyManagerScope && c.TopologyManagerPolicy != policyNone,
	}
	var errs []error
	if !out.StaticCPUs && len(c.CPUManagerPolicyOptions) > 0 {
		errs = append(errs, fmt.Errorf("%s (--cpu-manager-policy-options): the policy %s has no options: remove them, or set "+
			"cpuManagerPolicy to %s", cpuOptionsPath, policyNone, policyStatic))
	} else {
		errs = append(errs, readOptions(cpuOptionsPath, c.CPUManagerPolicyOptions, map[string]option{
			"full-pcpus-only":                  flagOption(&out.CPUOptions.FullCores),
			optionDistribute:                   flagOption(&out.CPUOptions.Distribute),
			"strict-cpu-reservation":           flagOption(&out.CPUOptions.StrictReservation),
			"prefer-align-cpus-by-uncorecache": flagOption(&out.CPUOptions.PreferCache),
		}))
	}
	if out.CPUOptions.PreferCache && out.CPUOptions.Distribute {
		errs = append(errs, fmt.Errorf("%s: want either prefer-align-cpus-by-uncorecache or distribute-cpus-across-numa", cpuOptionsPath))
	}
	if c.TopologyManagerPolicy == policyNone && len(c.TopologyManagerPolicyOptions) > 0 {
		errs = append(errs, fmt.Errorf("%s (--topology-manager-policy-options): the policy %s has no options: remove them, or set "+
			"topologyManagerPolicy", topologyOptionsPath, policyNone))
	} else {
		errs = append(errs, readOptions(topologyOptionsPath, c.TopologyManagerPolicyOptions, map[string]option{
			"prefer-closest-numa-nodes": flagOption(&out.PreferClosest),
			"max-allowable-numa-nodes":  maxNodesOption(&out.MaxNodes),
		}))
	}
	var err error
	out.ReservedMemory, err = convertReservedMemory(c)
	return out, errors.Join(append(errs, err)...)
}

// option sets an option to the value of the configuration.
type option func(value string) error

func flagOption(to *bool) option {
	return func(value string) (err error) {
		if *to, err = strconv.ParseBool(value); err != nil {
			return errors.New("want true or false")
		}
		return nil
	}
}

func maxNodesOption(to *int) option {
	return func(value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < resources.DefaultMaxNodes || n > hints.MaxNodes {
			return fmt.Errorf("want a number, %d to %d", resources.DefaultMaxNodes, hints.MaxNodes)
		}
		*to = n
		return nil
	}
}

func readOptions(path string, set map[string]string, known map[string]option) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(set)) {
		read, ok := known[name]
		if slices.Contains(alphaCPUOptions(), name) {
			continue // Check refuses it
		}
		if !ok {
			errs = append(errs, fmt.Errorf("%s %s: there is no such option: want some of %s", path, name,
				strings.Join(slices.Sorted(maps.Keys(known)), ", ")))
			continue
		}
		if err := read(set[name]); err != nil {
			errs = append(errs, fmt.Errorf("%s %s=%q: %w", path, name, set[name], err))
		}
	}
	return errors.Join(errs...)
}

// convertReservedMemory returns what is reserved of each NUMA node.
func convertReservedMemory(c *Configuration) (memory.Reservation, error) {
	const path = "reservedMemory (--reserved-memory)"
	if len(c.ReservedMemory) == 0 {
		return nil, nil
	}
	out := memory.Reservation{}
	for _, reservation := range c.ReservedMemory {
		node := int(reservation.NumaNode)
		if len(reservation.Limits) == 0 || node < 0 || node >= hints.MaxNodes {
			return nil, fmt.Errorf("%s: NUMA node %d: want a node of the machine and limits of it", path, node)
		}
		for name, quantity := range reservation.Limits {
			if name != corev1.ResourceMemory && !resourcename.IsHugePages(name) {
				return nil, fmt.Errorf("%s: NUMA node %d: %s: want memory or hugepages-SIZE", path, node, name)
			}
			if _, twice := out[node][name]; twice {
				return nil, fmt.Errorf("%s: NUMA node %d: %s is reserved twice", path, node, name)
			}
			if quantity.Sign() <= 0 {
				return nil, fmt.Errorf("%s: NUMA node %d: %s %s: want more than 0", path, node, name, quantity.String())
			}
			if out[node] == nil {
				out[node] = memory.Amounts{}
			}
			out[node][name] = uint64(quantity.Value())
		}
	}
	return out, nil
}
