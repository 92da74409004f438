package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	cadvisor "github.com/google/cadvisor/info/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// request is one of its fields.
type request struct {
	Start   *start
	Admit   *corev1.Pod
	Release types.UID
}

// response says whether a Pod was admitted. Error is why a start failed.
type response struct {
	Admit           bool
	Reason, Message string
	Error           string
}

// start says which machine and which policies the next Pods are for. Dir has the state files, Pods are those that they have.
type start struct {
	Dir     string
	Pods    []*corev1.Pod
	Machine topology
	// CPUPolicy and its options, MemoryPolicy, TopologyPolicy and its options, and TopologyScope are those of a KubeletConfiguration.
	CPUPolicy, MemoryPolicy, TopologyPolicy, TopologyScope string
	CPUOptions, TopologyOptions                            map[string]string
	// ReservedCPUs are reserved, or else as many as ReservedCPUCount. ReservedMemory is by NUMA node and kind, in bytes.
	ReservedCPUs     string
	ReservedCPUCount int64
	ReservedMemory   map[int]map[corev1.ResourceName]int64
}

// topology is a machine, as the root module describes it.
type topology struct {
	CPUs  map[int]struct{ Core, Socket, Node, Cache int }
	Nodes []struct {
		ID        int
		Memory    uint64
		Pages     []struct{ Size, Count uint64 }
		Distances []uint64
	}
}

// lastLevel is the level of the caches that the topology numbers.
const lastLevel = 3

// info returns the machine as cAdvisor reports it to upstream's managers.
func (t *topology) info() *cadvisor.MachineInfo {
	out := &cadvisor.MachineInfo{NumCores: len(t.CPUs)}
	sockets, cores := map[int]bool{}, map[int]bool{}
	for _, n := range t.Nodes {
		node := cadvisor.Node{Id: n.ID, Memory: n.Memory, Distances: n.Distances}
		for _, p := range n.Pages {
			node.HugePages = append(node.HugePages, cadvisor.HugePagesInfo{PageSize: p.Size >> 10, NumPages: p.Count})
		}
		ofCore := map[int]int{}
		for _, id := range slices.Sorted(maps.Keys(t.CPUs)) {
			cpu := t.CPUs[id]
			if cpu.Node != n.ID {
				continue
			}
			sockets[cpu.Socket], cores[cpu.Core] = true, true
			at, known := ofCore[cpu.Core]
			if !known {
				at = len(node.Cores)
				ofCore[cpu.Core] = at
				node.Cores = append(node.Cores, cadvisor.Core{
					Id: cpu.Core, SocketID: cpu.Socket, UncoreCaches: []cadvisor.Cache{{Id: cpu.Cache, Level: lastLevel}},
				})
			}
			node.Cores[at].Threads = append(node.Cores[at].Threads, id)
		}
		out.Topology = append(out.Topology, node)
	}
	out.NumSockets, out.NumPhysicalCores = len(sockets), len(cores)
	return out
}

// node has upstream's managers.
type node struct {
	cpus     cpumanager.Manager
	memory   memorymanager.Manager
	topology topologymanager.Manager

	mu   sync.Mutex // guards pods
	pods map[types.UID]*corev1.Pod
}

func newNode(ctx context.Context, s *start) (*node, error) {
	n := &node{pods: map[types.UID]*corev1.Pod{}}
	for _, pod := range s.Pods {
		n.pods[pod.UID] = pod
	}
	machine, logger := s.Machine.info(), logr.Discard()
	reservedCPUs, err := cpuset.Parse(s.ReservedCPUs)
	if err != nil {
		return nil, err
	}
	reserved, reservedMemory := s.reserved(reservedCPUs)
	if n.topology, err = topologymanager.NewManager(machine.Topology, s.TopologyPolicy, s.TopologyScope, s.TopologyOptions); err != nil {
		return nil, err
	}
	// The period is that of a loop which moves containers; here there are none.
	if n.cpus, err = cpumanager.NewManager(logger, s.CPUPolicy, s.CPUOptions, 24*time.Hour, machine, reservedCPUs, reserved, s.Dir, n.topology); err != nil {
		return nil, err
	}
	if n.memory, err = memorymanager.NewManager(logger, s.MemoryPolicy, machine, reserved, reservedMemory, s.Dir, n.topology); err != nil {
		return nil, err
	}
	if err := n.cpus.Start(ctx, n.active, ready{}, noStatus{}, nil, containermap.NewContainerMap()); err != nil {
		return nil, err
	}
	if err := n.memory.Start(ctx, n.active, ready{}, noStatus{}, nil, containermap.NewContainerMap()); err != nil {
		return nil, err
	}
	n.topology.AddHintProvider(logger, n.cpus)
	n.topology.AddHintProvider(logger, n.memory)
	return n, nil
}

// reserved returns what is reserved of the node, and of its NUMA nodes.
func (s *start) reserved(cpus cpuset.CPUSet) (corev1.ResourceList, []kubeletconfig.MemoryReservation) {
	count := s.ReservedCPUCount
	if !cpus.IsEmpty() {
		count = int64(cpus.Size())
	}
	all := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(count, resource.DecimalSI)}
	var byNode []kubeletconfig.MemoryReservation
	for _, id := range slices.Sorted(maps.Keys(s.ReservedMemory)) {
		limits := corev1.ResourceList{}
		for kind, size := range s.ReservedMemory[id] {
			limits[kind] = *resource.NewQuantity(size, resource.BinarySI)
			sum := all[kind]
			sum.Add(limits[kind])
			all[kind] = sum
		}
		byNode = append(byNode, kubeletconfig.MemoryReservation{NumaNode: int32(id), Limits: limits})
	}
	return all, byNode
}

// active returns the Pods whose resources the managers keep.
func (n *node) active() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.pods))
}

func (n *node) admit(pod *corev1.Pod) response {
	n.mu.Lock()
	_, again := n.pods[pod.UID]
	n.pods[pod.UID] = pod
	n.mu.Unlock()
	result := n.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	if !result.Admit && !again {
		n.release(pod.UID)
	}
	return response{Admit: result.Admit, Reason: result.Reason, Message: result.Message}
}

// release removes a Pod. The managers take back what it has at the next occasion, which a Pod without requests is.
func (n *node) release(uid types.UID) {
	n.mu.Lock()
	delete(n.pods, uid)
	n.mu.Unlock()
	empty := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "none"}}}}
	n.cpus.GetTopologyHints(empty, &empty.Spec.Containers[0])
	n.memory.GetTopologyHints(empty, &empty.Spec.Containers[0])
}

// ready says that all Pods are known.
type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

// noStatus has no status of any Pod: nothing runs.
type noStatus struct{}

func (noStatus) GetPodStatus(types.UID) (corev1.PodStatus, bool) { return corev1.PodStatus{}, false }
