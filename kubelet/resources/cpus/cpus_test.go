package cpus_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/resources/cpus"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine"
	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
	"github.com/berth-dev/berth/kubelet/resources/rejection"
)

// container returns a container that requests and is limited to so much.
func container(name, cpu string) corev1.Container {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Mi")}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}
}

func podOf(uid string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Containers: containers}}
}

// newManager returns an opened Manager with the policy static that reserves one CPU, or what change says.
func newManager(t *testing.T, topology *machine.Topology, change func(*cpus.Config)) *cpus.Manager {
	t.Helper()
	m, err := open(topology, t.TempDir(), change)
	require.NoError(t, err)
	return m
}

func open(topology *machine.Topology, dir string, change func(*cpus.Config)) (*cpus.Manager, error) {
	config := cpus.Config{Static: true, ReservedCount: 1, Dir: dir}
	if change != nil {
		change(&config)
	}
	m, err := cpus.New(cpus.Deps{Topology: topology, Metrics: metrics.New()}, config)
	if err != nil {
		return nil, err
	}
	_, err = m.Open()
	return m, err
}

// admit allocates the CPUs of a Pod's containers on the nodes.
func admit(m *cpus.Manager, pod *corev1.Pod, nodes ...int) error {
	m.Begin()
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := m.Allocate(pod, &list[i], hints.Hint{Nodes: hints.MaskOf(nodes...)}); err != nil {
				m.Rollback()
				return err
			}
		}
	}
	_, err := m.Commit()
	return err
}

func of(m *cpus.Manager, uid, container string) string {
	set, exclusive := m.Of(uid, container)
	if !exclusive {
		return "shared " + set.String()
	}
	return set.String()
}

func TestWhichContainersGetCPUsOfTheirOwn(t *testing.T) {
	m := newManager(t, machinetest.New(1, 1, 8, 1), nil)
	burstable := podOf("burstable", corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
	}})
	ofPod := podOf("pod-level", container("c", "2"))
	ofPod.Spec.Resources = &corev1.ResourceRequirements{Requests: ofPod.Spec.Containers[0].Resources.Requests, Limits: ofPod.Spec.Containers[0].Resources.Limits}
	for _, pod := range []*corev1.Pod{
		podOf("besteffort", corev1.Container{Name: "c"}), burstable, ofPod, podOf("fraction", container("c", "1500m")),
	} {
		require.NoError(t, admit(m, pod))
		require.Equal(t, "shared 0-7", of(m, string(pod.UID), "c"), pod.UID)
	}
	require.NoError(t, admit(m, podOf("mixed", container("own", "2"), container("shares", "500m"))))
	require.Equal(t, "1-2", of(m, "mixed", "own"), "0 is reserved")
	require.Equal(t, "shared 0,3-7", of(m, "mixed", "shares"))
	require.True(t, m.HasExclusive("mixed"))
	require.False(t, m.HasExclusive("fraction"))
}

// TestTakeIsCompact has the examples of the documentation of the CPU manager: whole sockets, then cores, then threads.
func TestTakeIsCompact(t *testing.T) {
	for name, c := range map[string]struct {
		topology *machine.Topology
		config   func(*cpus.Config)
		request  string
		nodes    []int
		want     string
	}{
		"a core":                      {machinetest.New(1, 1, 4, 2), nil, "2", nil, "1,5"},
		"a thread of the core in use": {machinetest.New(1, 1, 4, 2), nil, "1", nil, "4"},
		"a socket":                    {machinetest.New(2, 1, 4, 2), nil, "8", nil, "4-7,12-15"},
		"a socket and a core":         {machinetest.New(2, 1, 4, 2), nil, "10", nil, "1,4-7,9,12-15"},
		"the nodes of the hint":       {machinetest.New(2, 1, 4, 2), nil, "2", []int{1}, "4,12"},
		"more than the hint has":      {machinetest.New(2, 1, 2, 1), nil, "3", []int{1}, "1-3"},
		"reserved by name":            {machinetest.New(1, 1, 4, 2), func(c *cpus.Config) { c.Reserved = cpuset.New(1, 5) }, "2", nil, "0,4"},
		"evenly over nodes": {machinetest.New(2, 1, 4, 2), func(c *cpus.Config) { c.Options.Distribute = true; c.Reserved = cpuset.New(0, 4) },
			"10", nil, "1-2,5-6,8-10,12-14"},
		"by cores over nodes": {machinetest.New(2, 1, 4, 2), func(c *cpus.Config) {
			c.Options.Distribute, c.Options.FullCores, c.Reserved = true, true, cpuset.New(0, 8)
		}, "12", nil, "1-6,9-14"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t, c.topology, c.config)
			require.NoError(t, admit(m, podOf("p", container("c", c.request)), c.nodes...))
			require.Equal(t, c.want, of(m, "p", "c"))
		})
	}
}

func TestFullCoresOnly(t *testing.T) {
	m := newManager(t, machinetest.New(1, 1, 4, 2), func(c *cpus.Config) { c.Options.FullCores = true })
	err := admit(m, podOf("odd", container("c", "3")))
	require.Equal(t, rejection.SMTAlignment, rejection.From(err).Reason)
	require.EqualError(t, err, "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2")
	require.NoError(t, admit(m, podOf("even", container("c", "6"))))
	require.Equal(t, "1-3,5-7", of(m, "even", "c"))
	err = admit(m, podOf("more", container("c", "2")))
	require.ErrorContains(t, err, "available physical CPUs = 0, requested CPUs = 2", "the sibling of the reserved CPU is not a core")
}

func TestStrictReservationKeepsReservedCPUsFromAll(t *testing.T) {
	m := newManager(t, machinetest.New(1, 1, 4, 1), func(c *cpus.Config) { c.Options.StrictReservation = true })
	require.Equal(t, "shared 1-3", of(m, "any", "c"))
	require.Equal(t, "1-3", m.Allocatable().String())
	require.NoError(t, admit(m, podOf("all", container("c", "3"))))
	require.Equal(t, "shared 0", of(m, "any", "c"), "nothing else is left")
	found, err := m.Open() // a restart
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "1-3", of(m, "all", "c"))
}

func TestPreferCache(t *testing.T) {
	topology := machinetest.New(1, 1, 8, 1)
	for id, c := range topology.CPUs {
		c.Cache = id / 4
		topology.CPUs[id] = c
	}
	m := newManager(t, topology, func(c *cpus.Config) { c.Options.PreferCache = true })
	require.NoError(t, admit(m, podOf("a", container("c", "2"))))
	require.NoError(t, admit(m, podOf("b", container("c", "3"))))
	require.Equal(t, "1-2", of(m, "a", "c"))
	require.Equal(t, "4-6", of(m, "b", "c"), "not 3 and two of the other cache")
}

func TestContainersReuseTheCPUsOfInitContainers(t *testing.T) {
	m := newManager(t, machinetest.New(1, 1, 8, 1), nil)
	pod := podOf("p", container("main", "3"))
	sidecar := container("sidecar", "1")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	pod.Spec.InitContainers = []corev1.Container{container("first", "2"), sidecar, container("second", "2")}
	require.NoError(t, admit(m, pod))
	require.Equal(t, "1-2", of(m, "p", "first"))
	require.Equal(t, "1", of(m, "p", "sidecar"))
	require.Equal(t, "2-3", of(m, "p", "second"))
	require.Equal(t, "2-4", of(m, "p", "main"))
	require.Equal(t, "0,5-7", m.Shared().String())
	changed, err := m.Release("p")
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, "0-7", m.Shared().String())
}

func TestAPodThatDoesNotFitChangesNothing(t *testing.T) {
	m := newManager(t, machinetest.New(1, 1, 4, 1), nil)
	err := admit(m, podOf("p", container("a", "2"), container("b", "2")))
	require.EqualError(t, err, "[cpumanager] not enough CPUs are free: 2 requested, free are 1 (3 on NUMA node 0)")
	require.Equal(t, "0-3", m.Shared().String())
	require.NoError(t, admit(m, podOf("q", container("c", "3"))))
}

func TestHintsNameTheNodesWithEnoughCPUs(t *testing.T) {
	m := newManager(t, machinetest.New(2, 1, 4, 1), nil)
	require.NoError(t, admit(m, podOf("p", container("c", "2")), 1))
	pod := podOf("q", container("c", "3"))
	m.Begin()
	require.Equal(t, hints.ByResource{"cpu": {
		{Nodes: hints.MaskOf(0), Preferred: true}, {Nodes: hints.MaskOf(0, 1)},
	}}, m.Hints(pod, &pod.Spec.Containers[0]))
	pod = podOf("q", container("c", "3"), container("d", "2"))
	require.Equal(t, hints.ByResource{"cpu": {{Nodes: hints.MaskOf(0, 1), Preferred: true}}}, m.PodHints(pod))
	given := podOf("p", container("c", "2"))
	require.Equal(t, hints.ByResource{"cpu": {
		{Nodes: hints.MaskOf(1), Preferred: true}, {Nodes: hints.MaskOf(0, 1)},
	}}, m.Hints(given, &given.Spec.Containers[0]), "where its CPUs are")
}

func TestStateOutlivesTheProcess(t *testing.T) {
	dir, topology := t.TempDir(), machinetest.New(1, 1, 4, 1)
	m, err := open(topology, dir, nil)
	require.NoError(t, err)
	require.NoError(t, admit(m, podOf("p", container("c", "2"))))
	m, err = open(topology, dir, nil)
	require.NoError(t, err)
	require.Equal(t, "1-2", of(m, "p", "c"))
	require.Equal(t, "0,3", m.Shared().String())
	require.NoError(t, admit(m, podOf("p", container("c", "2"))), "it keeps them")
	require.Equal(t, "1-2", of(m, "p", "c"))
}

// TestStateOfUpstream reads a file that upstream's kubelet 1.36.3 has written, and writes the same.
func TestStateOfUpstream(t *testing.T) {
	golden, err := os.ReadFile("testdata/upstream.json")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, cpus.StateFile), golden, 0o600))
	m, err := open(machinetest.New(2, 1, 4, 1), dir, nil)
	require.NoError(t, err)
	require.Equal(t, "2-3", of(m, "uid-1", "main"))
	require.Equal(t, "1", of(m, "uid-1", "init"))
	require.Equal(t, "4", of(m, "uid-2", "c"))
	require.NoError(t, admit(m, podOf("more", container("c", "1"))))
	_, err = m.Release("more")
	require.NoError(t, err)
	again, err := os.ReadFile(filepath.Join(dir, cpus.StateFile))
	require.NoError(t, err)
	require.Equal(t, string(golden), string(again))
}

func TestStatesThatDoNotMatchAreRefused(t *testing.T) {
	topology := machinetest.New(1, 1, 4, 1)
	for name, c := range map[string]struct {
		content string
		change  func(*cpus.Config)
		want    string
	}{
		"other policy":      {`{"policyName":"none","defaultCpuSet":"","checksum":0}`, nil, `configured policy "static" differs from state checkpoint policy "none"`},
		"to none":           {`{"policyName":"static","defaultCpuSet":"0-3","checksum":0}`, func(c *cpus.Config) { c.Static = false }, "differs"},
		"reserved given":    {`{"policyName":"static","defaultCpuSet":"1-3","entries":{"p":{"c":"0"}},"checksum":0}`, nil, "the reserved CPUs 0 are not all among the shared ones"},
		"strictly reserved": {`{"policyName":"static","defaultCpuSet":"0-3","checksum":0}`, func(c *cpus.Config) { c.Options.StrictReservation = true }, "strictly reserved"},
		"overlap":           {`{"policyName":"static","defaultCpuSet":"0-3","entries":{"p":{"c":"2"}},"checksum":0}`, nil, `CPUs 2 of container "c" of Pod p are among the shared ones`},
		"other machine":     {`{"policyName":"static","defaultCpuSet":"0-5","checksum":0}`, nil, "the machine has CPUs 0-3, the state has 0-5"},
		"nothing shared":    {`{"policyName":"static","defaultCpuSet":"","entries":{"p":{"c":"2"}},"checksum":0}`, nil, "no shared CPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, cpus.StateFile)
			require.NoError(t, os.WriteFile(path, []byte(c.content), 0o600))
			_, err := open(topology, dir, c.change)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "drain the node and remove the file")
			left, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, c.content, string(left))
		})
	}
}

func TestStaticNeedsReservedCPUs(t *testing.T) {
	topology := machinetest.New(1, 1, 2, 1)
	_, err := open(topology, t.TempDir(), func(c *cpus.Config) { c.ReservedCount = 0 })
	require.ErrorContains(t, err, "set the cpu of kubeReserved or systemReserved above 0, or reservedSystemCPUs")
	_, err = open(topology, t.TempDir(), func(c *cpus.Config) { c.Reserved = cpuset.New(1, 7) })
	require.ErrorContains(t, err, "the machine has no CPUs 7")
	_, err = open(topology, t.TempDir(), func(c *cpus.Config) { c.ReservedCount = 3 })
	require.ErrorContains(t, err, "3 requested, 2 free")
}

func TestAFileThatCannotBeWrittenChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kubelet")
	require.NoError(t, os.Mkdir(dir, 0o755))
	m, err := open(machinetest.New(1, 1, 4, 1), dir, nil)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	require.ErrorContains(t, admit(m, podOf("p", container("c", "2"))), "write the CPU manager's state")
	require.Equal(t, "0-3", m.Shared().String())
	require.False(t, m.HasExclusive("p"), fmt.Sprint(m.Pods()))
}
