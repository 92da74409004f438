package resources

import (
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/kubelet/resources/claims"
	"github.com/berth-dev/berth/kubelet/resources/cpus"
	"github.com/berth-dev/berth/kubelet/resources/devices"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine"
	"github.com/berth-dev/berth/kubelet/resources/memory"
)

// DefaultMaxNodes is how many NUMA nodes a machine may have for a policy that aligns resources: the number of their sets doubles
// with each node.
const DefaultMaxNodes = 8

// Config holds the values of a Manager.
type Config struct {
	// Dir is the kubelet's directory, which has the state files. NodeName is the node's name.
	Dir, NodeName string
	// NoAPIServer says that the node has none: static Pods have no ResourceClaims, and drivers no ResourceSlices.
	NoAPIServer bool
	// StaticCPUs gives containers CPUs of their own, chosen by CPUOptions; ReservedCPUs are none of them, or else as many CPUs
	// as ReservedCPUCount.
	StaticCPUs       bool
	CPUOptions       cpus.Options
	ReservedCPUs     cpuset.CPUSet
	ReservedCPUCount int
	// StaticMemory gives containers memory of chosen NUMA nodes, of which ReservedMemory is none.
	StaticMemory   bool
	ReservedMemory memory.Reservation
	// Policy says how resources are aligned; none if empty. PodScope aligns those of all containers of a Pod with each other.
	Policy   hints.Policy
	PodScope bool
	// PreferClosest prefers NUMA nodes with a short distance. MaxNodes is DefaultMaxNodes if zero.
	PreferClosest bool
	MaxNodes      int
}

// plain reports whether nothing depends on the machine's topology.
func (c *Config) plain() bool {
	return !c.StaticCPUs && !c.StaticMemory && (c.Policy == "" || c.Policy == hints.None)
}

// Deps holds what a Manager needs. Clock and Logger may be nil, and Topology, which is then read from the machine if the configuration
// needs it.
type Deps struct {
	// Client reads ResourceClaims.
	Client   kubernetes.Interface
	Topology *machine.Topology
	// OnPoolChanged is called when containers without CPUs of their own have others than before. It must not block.
	OnPoolChanged func()
	// OnDevicesChanged is called when the node has other devices than before, and OnHealthChanged for each Pod of whose devices one
	// has become healthy or unhealthy. They must not block.
	OnDevicesChanged func()
	OnHealthChanged  func(uid types.UID)
	Clock            clock.Clock
	Logger           *slog.Logger
}

// complete checks the configuration against the machine.
func complete(deps *Deps, config *Config) error {
	for _, dep := range []struct {
		name    string
		missing bool
	}{
		{"Client", deps.Client == nil}, {"OnPoolChanged", deps.OnPoolChanged == nil}, {"OnDevicesChanged", deps.OnDevicesChanged == nil},
		{"OnHealthChanged", deps.OnHealthChanged == nil},
	} {
		if dep.missing {
			return errors.New("resources: Deps." + dep.name + " is required")
		}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if config.Policy == "" {
		config.Policy = hints.None
	}
	if config.MaxNodes == 0 {
		config.MaxNodes = DefaultMaxNodes
	}
	if deps.Topology == nil {
		deps.Topology = &machine.Topology{}
		if !config.plain() {
			var err error
			if deps.Topology, err = machine.Read(machine.Config{}); err != nil {
				return err
			}
		}
	}
	ids := deps.Topology.NodeIDs()
	if n := len(ids); n > 0 && ids[n-1] >= hints.MaxNodes {
		return fmt.Errorf("align resources on NUMA nodes: the machine has a node %d, the highest number that is supported is %d",
			ids[n-1], hints.MaxNodes-1)
	}
	if n := len(ids); config.Policy != hints.None && n > config.MaxNodes {
		return fmt.Errorf("topology manager policy %s: the machine has %d NUMA nodes, the option max-allowable-numa-nodes allows %d",
			config.Policy, n, config.MaxNodes)
	}
	for node := range config.ReservedMemory {
		if config.StaticMemory && !hints.MaskOf(ids...).Has(node) {
			return fmt.Errorf("reservedMemory: the machine has no NUMA node %d", node)
		}
	}
	return nil
}

// newManagers sets the managers of the kinds of resources.
func (m *Manager) newManagers() (err error) {
	deps, config := &m.deps, &m.config
	if m.cpus, err = cpus.New(cpus.Deps{Topology: deps.Topology, Metrics: m.metrics, Logger: deps.Logger}, cpus.Config{
		Static: config.StaticCPUs, Options: config.CPUOptions, Reserved: config.ReservedCPUs, ReservedCount: config.ReservedCPUCount,
		Dir: config.Dir,
	}); err != nil {
		return err
	}
	if m.memory, err = memory.New(memory.Deps{Topology: deps.Topology, Metrics: m.metrics, Logger: deps.Logger}, memory.Config{
		Static: config.StaticMemory, Reserved: config.ReservedMemory, Dir: config.Dir,
	}); err != nil {
		return err
	}
	if m.claims, err = claims.New(claims.Deps{Client: deps.Client, OnHealthChanged: deps.OnHealthChanged, Clock: deps.Clock, Logger: deps.Logger}, claims.Config{
		Root: config.Dir, NodeName: config.NodeName, NoAPIServer: config.NoAPIServer,
	}); err != nil {
		return err
	}
	m.devices, err = devices.New(devices.Deps{
		NUMANodes: deps.Topology.NodeIDs(), Metrics: m.metrics, OnCapacityChanged: deps.OnDevicesChanged, OnHealthChanged: deps.OnHealthChanged,
		Clock: deps.Clock, Logger: deps.Logger,
	}, config.Dir)
	return err
}
