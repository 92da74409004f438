package memory_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine"
	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
	"github.com/berth-dev/berth/kubelet/resources/memory"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

const hugePages = "hugepages-2Mi"

func container(name, size, pages string) corev1.Container {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse(size)}
	if pages != "" {
		list[hugePages] = resource.MustParse(pages)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}
}

func podOf(uid string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Containers: containers}}
}

// open returns a Manager of two nodes of 16 GiB, 2 GiB of them huge pages and 1 GiB reserved.
func open(t *testing.T, dir string, static bool) (*memory.Manager, error) {
	t.Helper()
	return openOn(t, dir, machinetest.New(2, 1, 4, 1), static)
}

// openOn returns a Manager of a machine of which each of the first two nodes has 1 GiB reserved.
func openOn(t *testing.T, dir string, topology *machine.Topology, static bool) (*memory.Manager, error) {
	t.Helper()
	reserved := memory.Reservation{0: {corev1.ResourceMemory: 1 << 30}, 1: {corev1.ResourceMemory: 1 << 30}}
	m, err := memory.New(memory.Deps{Topology: topology, Metrics: metrics.New()}, memory.Config{Static: static, Reserved: reserved, Dir: dir})
	require.NoError(t, err)
	_, err = m.Open()
	return m, err
}

func newManager(t *testing.T) *memory.Manager {
	t.Helper()
	m, err := open(t, t.TempDir(), true)
	require.NoError(t, err)
	return m
}

func admit(m *memory.Manager, pod *corev1.Pod, hint hints.Hint) error {
	m.Begin()
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := m.Allocate(pod, &list[i], hint); err != nil {
				m.Rollback()
				return err
			}
		}
	}
	return m.Commit()
}

func TestMemoryComesFromAsFewNodesAsPossible(t *testing.T) {
	m := newManager(t)
	require.Equal(t, []memory.Block{
		{NUMAAffinity: []int{0}, Type: hugePages, Size: 2 << 30}, {NUMAAffinity: []int{0}, Type: "memory", Size: 13 << 30},
		{NUMAAffinity: []int{1}, Type: hugePages, Size: 2 << 30}, {NUMAAffinity: []int{1}, Type: "memory", Size: 13 << 30},
	}, m.Allocatable())
	require.NoError(t, admit(m, podOf("a", container("c", "10Gi", "4Mi")), hints.Hint{}))
	require.NoError(t, admit(m, podOf("b", container("c", "10Gi", "")), hints.Hint{}))
	require.NoError(t, admit(m, podOf("c", container("c", "1Gi", "")), hints.Hint{Nodes: hints.MaskOf(1), Preferred: true}))
	require.Equal(t, "0", m.Nodes("a", "c").String())
	require.Equal(t, "1", m.Nodes("b", "c").String())
	require.Equal(t, "1", m.Nodes("c", "c").String())
	require.Zero(t, m.Nodes("unknown", "c"))
	err := admit(m, podOf("d", container("c", "5Gi", "")), hints.Hint{})
	require.ErrorContains(t, err, "no NUMA nodes have enough memory that is free: memory: 3Gi on NUMA node 0, 2Gi on NUMA node 1")
	require.NoError(t, m.Release("a"))
	require.NoError(t, admit(m, podOf("d", container("c", "5Gi", "")), hints.Hint{}))
	require.Equal(t, "0", m.Nodes("d", "c").String())
}

func TestANodeGivesMemoryAloneOrAlwaysWithTheSameOthers(t *testing.T) {
	m := newManager(t)
	require.NoError(t, admit(m, podOf("both", container("c", "20Gi", "")), hints.Hint{}))
	require.Equal(t, "0,1", m.Nodes("both", "c").String())
	small := podOf("small", container("c", "1Gi", ""))
	m.Begin()
	require.Equal(t, hints.ByResource{"memory": {{Nodes: hints.MaskOf(0, 1)}}}, m.Hints(small, &small.Spec.Containers[0]),
		"one node would do, but both are a group")
	require.NoError(t, admit(m, small, hints.Hint{}))
	require.Equal(t, "0,1", m.Nodes("small", "c").String())
	require.NoError(t, m.Release("both"))
	require.NoError(t, m.Release("small"))
	require.NoError(t, admit(m, small, hints.Hint{}))
	require.Equal(t, "0", m.Nodes("small", "c").String(), "the group has ended")
}

// TestANodeOfAGroupMayGiveMemoryAlone has a container whose CPUs are on a node that gives memory together with another one. Its kubelet
// starts again, and the nodes are a group again afterwards.
func TestANodeOfAGroupMayGiveMemoryAlone(t *testing.T) {
	dir := t.TempDir()
	m, err := open(t, dir, true)
	require.NoError(t, err)
	require.NoError(t, admit(m, podOf("both", container("c", "20Gi", "")), hints.Hint{}))
	require.NoError(t, admit(m, podOf("alone", container("c", "1Gi", "")), hints.Hint{Nodes: hints.MaskOf(1)}))
	require.Equal(t, "1", m.Nodes("alone", "c").String())
	m, err = open(t, dir, true)
	require.NoError(t, err)
	require.NoError(t, m.Release("alone"))
	m, err = open(t, dir, true)
	require.NoError(t, err)
	require.NoError(t, admit(m, podOf("small", container("c", "1Gi", "")), hints.Hint{}))
	require.Equal(t, "0,1", m.Nodes("small", "c").String())
	require.ErrorContains(t, admit(m, podOf("large", container("c", "6Gi", "")), hints.Hint{}), "no NUMA nodes have enough memory that is free")
}

func TestContainersReuseTheMemoryOfInitContainers(t *testing.T) {
	m := newManager(t)
	pod := podOf("p", container("main", "12Gi", ""))
	pod.Spec.InitContainers = []corev1.Container{container("init", "8Gi", "")}
	require.NoError(t, admit(m, pod, hints.Hint{Nodes: hints.MaskOf(0)}))
	require.Equal(t, []memory.Block{{NUMAAffinity: []int{0}, Type: "memory", Size: 12 << 30}}, m.Of("p", "main"))
	require.Equal(t, []memory.Block{{NUMAAffinity: []int{0}, Type: "memory", Size: 0}}, m.Of("p", "init"))
	require.NoError(t, admit(m, podOf("rest", container("c", "1Gi", "")), hints.Hint{Nodes: hints.MaskOf(0)}))
	require.NoError(t, m.Release("p"))
	require.NoError(t, admit(m, podOf("q", container("c", "12Gi", "")), hints.Hint{Nodes: hints.MaskOf(0)}))
	require.Equal(t, "0", m.Nodes("q", "c").String(), "all of it is free again")
}

// TestStateOfUpstream reads a file that upstream's kubelet 1.36.3 has written, and writes the same.
func TestStateOfUpstream(t *testing.T) {
	golden, err := os.ReadFile("testdata/upstream.json")
	require.NoError(t, err)
	dir := t.TempDir()
	path := filepath.Join(dir, memory.StateFile)
	require.NoError(t, os.WriteFile(path, golden, 0o600))
	m, err := open(t, dir, true)
	require.NoError(t, err)
	require.Equal(t, "1", m.Nodes("uid-1", "main").String())
	require.NoError(t, admit(m, podOf("more", container("c", "1Gi", "")), hints.Hint{}))
	require.NoError(t, m.Release("more"))
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(golden), string(again))
	_, err = open(t, dir, false)
	require.ErrorContains(t, err, `configured policy "None" differs from state checkpoint policy "Static"`)
}

// TestMemoryOfTheMachineMayChange opens a state on machines whose nodes have more or less memory or huge pages, or other kinds. What
// containers have is kept, and the rest is free, as long as the machine has it.
func TestMemoryOfTheMachineMayChange(t *testing.T) {
	dir := t.TempDir()
	m, err := open(t, dir, true)
	require.NoError(t, err)
	require.NoError(t, admit(m, podOf("both", container("c", "20Gi", "")), hints.Hint{}))
	require.NoError(t, admit(m, podOf("alone", container("c", "1Gi", "")), hints.Hint{Nodes: hints.MaskOf(1)}))
	stored, err := os.ReadFile(filepath.Join(dir, memory.StateFile))
	require.NoError(t, err)
	for name, test := range map[string]struct {
		change func(*machine.Topology)
		// free is a request that gets the last of the free memory.
		free string
		err  string
	}{
		"as before":                     {func(*machine.Topology) {}, "5Gi", ""},
		"more memory":                   {func(m *machine.Topology) { m.Nodes[0].Memory += 1 << 30 }, "6Gi", ""},
		"less memory":                   {func(m *machine.Topology) { m.Nodes[0].Memory -= 1 << 30 }, "4Gi", ""},
		"less of a node that was full":  {func(m *machine.Topology) { m.Nodes[0].Memory -= 4 << 30 }, "1Gi", ""},
		"huge pages that nothing has":   {func(m *machine.Topology) { m.Nodes[1].Pages[0].Count *= 2 }, "3Gi", ""},
		"no huge pages":                 {func(m *machine.Topology) { m.Nodes[1].Pages = nil }, "7Gi", ""},
		"less than containers have":     {func(m *machine.Topology) { m.Nodes[0].Memory -= 6 << 30 }, "", `the amount or the reservation of memory of NUMA node 0 differs`},
		"less than one container has":   {func(m *machine.Topology) { m.Nodes[1].Memory = 3<<30 + 1<<29 }, "", `container "c" of Pod alone has memory of NUMA nodes [1], 536870912 bytes more`},
		"a NUMA node less":              {func(m *machine.Topology) { m.Nodes = m.Nodes[:1] }, "", "the machine has no NUMA node 1"},
		"a NUMA node more, of the same": {func(m *machine.Topology) { m.Nodes = append(m.Nodes, machine.Node{ID: 2, Memory: 1 << 30}) }, "5Gi", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, memory.StateFile), stored, 0o600))
			topology := machinetest.New(2, 1, 4, 1)
			test.change(topology)
			changed, err := openOn(t, dir, topology, true)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				require.ErrorContains(t, err, "drain the node and remove the file")
				kept, err := os.ReadFile(filepath.Join(dir, memory.StateFile))
				require.NoError(t, err)
				require.Equal(t, string(stored), string(kept))
				return
			}
			require.NoError(t, err)
			require.Equal(t, m.Of("both", "c"), changed.Of("both", "c"))
			require.Equal(t, m.Of("alone", "c"), changed.Of("alone", "c"))
			more := resource.MustParse(test.free)
			more.Add(resource.MustParse("1Mi"))
			require.ErrorContains(t, admit(changed, podOf("more", container("c", more.String(), "")), hints.Hint{}), "no NUMA nodes have enough memory that is free")
			require.NoError(t, admit(changed, podOf("rest", container("c", test.free, "")), hints.Hint{}))
			_, err = openOn(t, dir, topology, true)
			require.NoError(t, err, "the state is that of the machine now")
		})
	}
}
