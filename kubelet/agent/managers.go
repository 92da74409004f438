package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/cpulist"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/kubelet/resources"
	"github.com/berth-dev/berth/kubelet/resources/podresources"
)

// newManagers returns the managers of what containers do not share with others.
func newManagers(base *base, n *nodeComponents) (*resources.Manager, error) {
	config := base.config.Managers
	config.Dir, config.NodeName = base.config.RootDir, base.config.Node.Name
	enforcement := &base.config.Cgroups.Enforcement
	reserved := enforcement.KubeReserved.Cpu().DeepCopy()
	reserved.Add(*enforcement.SystemReserved.Cpu())
	config.ReservedCPUCount = int(reserved.Value()) // rounded up
	var err error
	if config.ReservedCPUs, err = cpulist.Parse(base.config.Cgroups.ReservedCPUs); err != nil {
		return nil, fmt.Errorf("read the reserved CPUs %q: %w", base.config.Cgroups.ReservedCPUs, err)
	}
	if config.StaticMemory {
		capacity, err := n.capacity()
		if err != nil {
			return nil, err
		}
		ofNode := newNodeConfig(&base.config)
		if err := checkReservedMemory(ofNode.Reserved(capacity), &config); err != nil {
			return nil, err
		}
	}
	config.NoAPIServer = base.deps.standalone
	managers, err := resources.New(resources.Deps{
		Client: base.deps.Client, OnPoolChanged: base.signals.PoolChanged, OnDevicesChanged: func() { n.manager.DevicesChanged() }, OnHealthChanged: base.signals.Wake,
		Clock: base.deps.Clock, Logger: base.logger("resources"),
	}, config)
	if err != nil {
		return nil, err
	}
	base.metrics.main.MustRegister(managers.Collectors()...)
	return managers, nil
}

// checkReservedMemory compares what is reserved of the NUMA nodes with what is reserved of the node.
func checkReservedMemory(reserved corev1.ResourceList, config *resources.Config) error {
	excess := map[corev1.ResourceName]int64{} // of what is reserved of the NUMA nodes
	for name, all := range reserved {
		if name == corev1.ResourceMemory || resourcename.IsHugePages(name) {
			excess[name] -= all.Value()
		}
	}
	for _, amounts := range config.ReservedMemory {
		for name, amount := range amounts {
			excess[name] += int64(amount)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(excess)) {
		if excess[name] != 0 {
			all := reserved[name]
			return fmt.Errorf("memory manager policy Static: reservedMemory reserves %s of %s, and kubeReserved, systemReserved and "+
				"evictionHard together %s: want the same amount",
				resource.NewQuantity(excess[name]+all.Value(), resource.BinarySI), name, all.String())
		}
	}
	return nil
}

// startManagers serves device plugins and the podresources socket, and takes back what Pods have that ended while no kubelet ran.
func (p *podComponents) startManagers(config *Config, managers *resources.Manager) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		pods := func() []*corev1.Pod { return withoutEnded(p.workers.ActivePods(), p.mirrors.Get) }
		if config.Pods.ListEnded {
			pods = p.workers.Pods
		}
		server, err := podresources.New(podresources.Deps{
			Source: managers, Pods: pods, Ready: p.workers.Ready(), Metrics: managers.Metrics(),
		}, config.RootDir)
		if err != nil {
			return err
		}
		group, ctx := errgroup.WithContext(ctx)
		group.Go(contain.Func("agent.podresources", "", func() error { return server.Start(ctx) }))
		group.Go(contain.Func("agent.managers", "", func() error { return managers.Start(ctx) }))
		group.Go(contain.Func("agent.managers", "", func() error {
			select {
			case <-p.workers.Ready():
				managers.Retain(p.workers.Has)
			case <-ctx.Done():
			}
			return nil
		}))
		return group.Wait()
	}
}

// withoutEnded omits the Pods whose status says that they have ended. What they had is returned a moment later, once their sandboxes
// have stopped; who reads the status expects it to be free.
func withoutEnded(pods []*corev1.Pod, statusOf func(uid types.UID) (corev1.PodStatus, bool)) []*corev1.Pod {
	return slices.DeleteFunc(pods, func(pod *corev1.Pod) bool {
		status, known := statusOf(pod.UID)
		return known && podutil.IsTerminal(&status)
	})
}
