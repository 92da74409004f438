package resources_test

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/resources"
	"github.com/berth-dev/berth/kubelet/resources/cpus"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine"
	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
	"github.com/berth-dev/berth/kubelet/resources/memory"
)

// TestRandomLives admits and releases random Pods on random machines under random policies, with restarts in between, and compares
// who has what with a simple model: no CPU and no page of memory belongs to two Pods, nothing is lost, nothing is released early.
func TestRandomLives(t *testing.T) {
	for seed := range int64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newLife(t, seed).run(40) })
	}
}

// life is the model: which Pods have been admitted and not released.
type life struct {
	t        *testing.T
	random   *rand.Rand
	topology *machine.Topology
	config   resources.Config
	manager  *resources.Manager
	pods     map[types.UID]*corev1.Pod
	pins     map[types.UID]map[string]resources.Pin
	next     int
}

func newLife(t *testing.T, seed int64) *life {
	r := rand.New(rand.NewSource(seed))
	l := &life{
		t: t, random: r, topology: machinetest.New(1+r.Intn(2), 1+r.Intn(2), 2+r.Intn(3), 1+r.Intn(2)),
		pods: map[types.UID]*corev1.Pod{}, pins: map[types.UID]map[string]resources.Pin{},
	}
	l.config = resources.Config{
		Dir: t.TempDir(), StaticCPUs: true, ReservedCPUCount: 1, StaticMemory: true, ReservedMemory: memory.Reservation{0: {corev1.ResourceMemory: 1 << 30}},
		Policy:   []hints.Policy{hints.None, hints.BestEffort, hints.Restricted, hints.SingleNode}[r.Intn(4)],
		PodScope: r.Intn(2) == 0, PreferClosest: r.Intn(2) == 0,
		CPUOptions: cpus.Options{FullCores: r.Intn(4) == 0, Distribute: r.Intn(3) == 0, StrictReservation: r.Intn(2) == 0},
	}
	l.config.CPUOptions.PreferCache = !l.config.CPUOptions.Distribute && r.Intn(2) == 0
	l.restart()
	return l
}

// restart replaces the manager by one that knows only the files.
func (l *life) restart() {
	var err error
	l.manager, err = resources.New(resources.Deps{
		Client: fake.NewClientset(), Topology: l.topology, OnPoolChanged: func() {}, OnDevicesChanged: func() {}, OnHealthChanged: func(types.UID) {},
	}, l.config)
	require.NoError(l.t, err)
	require.NoError(l.t, l.manager.Open())
}

func (l *life) run(steps int) {
	for range steps {
		switch n := l.random.Intn(10); {
		case n == 0:
			l.restart()
		case n < 4 && len(l.pods) > 0:
			l.release()
		default:
			l.admit()
		}
		l.check()
	}
	for len(l.pods) > 0 {
		l.release()
	}
	l.check()
	require.Equal(l.t, l.manager.Pin("other", "c").CPUs, l.sharedWithoutPods(), "all is free again")
}

// sharedWithoutPods returns the CPUs of a manager that has never had a Pod.
func (l *life) sharedWithoutPods() string {
	fresh := *l
	fresh.config.Dir = l.t.TempDir()
	fresh.restart()
	return fresh.manager.Pin("other", "c").CPUs
}

func cpusOf(m *resources.Manager) cpuset.CPUSet {
	set, _ := cpuset.Parse(m.Pin("other", "c").CPUs)
	return set
}

func (l *life) admit() {
	pod := l.pod()
	before := l.snapshot()
	result := l.manager.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	if !result.Admit {
		require.NotEmpty(l.t, result.Reason)
		require.Equal(l.t, before, l.snapshot(), "a Pod that is rejected changes nothing: %s", result.Message)
		return
	}
	l.pods[pod.UID] = pod
	l.pins[pod.UID] = l.pinsOf(pod)
	again := l.manager.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	if again.Admit {
		require.Equal(l.t, l.pins[pod.UID], l.pinsOf(pod), "a second admission gives the same")
	}
}

func (l *life) release() {
	uids := make([]types.UID, 0, len(l.pods))
	for uid := range l.pods {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	uid := uids[l.random.Intn(len(uids))]
	l.manager.Release(uid)
	delete(l.pods, uid)
	delete(l.pins, uid)
}

// pod returns a Guaranteed Pod with random containers.
func (l *life) pod() *corev1.Pod {
	l.next++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint("pod-", l.next))}}
	for i := range 1 + l.random.Intn(3) {
		list := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(500*(1+l.random.Intn(8))), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(int64(1+l.random.Intn(12))<<30, resource.BinarySI),
		}
		if l.random.Intn(3) == 0 {
			list["hugepages-2Mi"] = *resource.NewQuantity(int64(1+l.random.Intn(400))<<21, resource.BinarySI)
		}
		c := corev1.Container{Name: fmt.Sprint("c", i), Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}
		switch l.random.Intn(4) {
		case 0:
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case 1:
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	if len(pod.Spec.Containers) == 0 { // the API server accepts no Pod without
		last := len(pod.Spec.InitContainers) - 1
		c := pod.Spec.InitContainers[last]
		c.RestartPolicy = nil
		pod.Spec.InitContainers, pod.Spec.Containers = pod.Spec.InitContainers[:last], []corev1.Container{c}
	}
	return pod
}

func (l *life) containers(pod *corev1.Pod) []corev1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}

func (l *life) pinsOf(pod *corev1.Pod) map[string]resources.Pin {
	out := map[string]resources.Pin{}
	for _, c := range l.containers(pod) {
		if pin := l.manager.Pin(pod.UID, c.Name); pin.Exclusive || pin.Memory != "" {
			if !pin.Exclusive {
				pin.CPUs = "" // shared ones may change
			}
			out[c.Name] = pin
		}
	}
	return out
}

func (l *life) snapshot() string {
	all := fmt.Sprint(l.manager.Pin("other", "c"))
	for _, uid := range []string{"pod-1", "pod-2", "pod-3", "pod-4", "pod-5", "pod-6", "pod-7", "pod-8"} {
		if pod := l.pods[types.UID(uid)]; pod != nil {
			all += fmt.Sprint(l.pinsOf(pod))
		}
	}
	return all
}

// check compares what the manager says with the model.
func (l *life) check() {
	owner := map[int]types.UID{}
	shared := cpusOf(l.manager)
	memoryOf := map[string]uint64{}
	for uid, pod := range l.pods {
		require.Equal(l.t, l.pins[uid], l.pinsOf(pod), "nothing changes while the Pod lives")
		concurrent := cpuset.New()
		for _, c := range l.containers(pod) {
			pin := l.manager.Pin(uid, c.Name)
			if !pin.Exclusive {
				continue
			}
			set, err := cpuset.Parse(pin.CPUs)
			require.NoError(l.t, err)
			require.Equal(l.t, int(c.Resources.Requests.Cpu().Value()), set.Size(), "as many as requested")
			require.True(l.t, set.Intersection(shared).IsEmpty(), "%s of %s are shared", set, uid)
			for _, id := range set.List() {
				require.Contains(l.t, []types.UID{"", uid}, owner[id], "CPU %d has two owners", id)
				owner[id] = uid
			}
			sidecar := c.RestartPolicy != nil
			if sidecar || slices.ContainsFunc(pod.Spec.Containers, func(r corev1.Container) bool { return r.Name == c.Name }) {
				require.True(l.t, set.Intersection(concurrent).IsEmpty(), "two containers of %s that run side by side share %s", uid, set)
				concurrent = concurrent.Union(set)
			}
		}
		for _, c := range l.containers(pod) {
			for _, block := range l.manager.ContainerResources(pod, &c).Memory {
				memoryOf[block.MemoryType] += block.Size
			}
		}
	}
	for id := range l.topology.CPUs {
		if !l.config.CPUOptions.StrictReservation {
			require.True(l.t, shared.Contains(id) != (owner[id] != ""), "CPU %d is lost", id)
		}
	}
	allowed := map[string]uint64{}
	for _, block := range l.manager.AllocatableResources().Memory {
		allowed[block.MemoryType] += block.Size
	}
	for kind, used := range memoryOf {
		require.LessOrEqual(l.t, used, allowed[kind], kind)
	}
}
