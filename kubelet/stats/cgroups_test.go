package stats_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/stats"
)

// fixture is a machine whose procfs and cgroups are files of the test.
type fixture struct {
	t       *testing.T
	root    string
	clock   *clocktesting.FakeClock
	groups  *cm.Manager
	pods    []*corev1.Pod
	layout  cm.NodeConfig
	runtime stats.Runtime
}

func newFixture(t *testing.T, hierarchies ...cm.Hierarchy) *fixture {
	t.Helper()
	m := &fixture{
		t: t, root: t.TempDir(), clock: clocktesting.NewFakeClock(time.Unix(1800000000, 0)), runtime: &runtimeWithoutPSI{},
	}
	for i := range hierarchies {
		hierarchies[i].Dir = filepath.Join(m.root, hierarchies[i].Dir)
	}
	groups, err := cm.New(cm.Deps{}, cm.Config{Hierarchies: hierarchies})
	require.NoError(t, err)
	m.groups = groups
	m.write(map[string]string{
		"proc/stat": "cpu  100 0 100 9000 9000 0 0 0 50 0\nbtime 1700000000\n", "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 400 kB\n",
	})
	for _, proc := range []string{"self", "77"} {
		m.write(map[string]string{
			// The name has blanks and brackets; 7 and 2 faults, 150 and 50 ticks of CPU time, started 300 ticks after boot.
			"proc/" + proc + "/stat":   "77 (a) b (c) S 1 77 77 0 -1 4194560 5 0 2 0 150 50 0 0 20 0 9 0 300 0 0 0 0\n",
			"proc/" + proc + "/status": "Name:\ta\nVmRSS:\t   2000 kB\nRssAnon:\t   1500 kB\nVmSwap:\t      3 kB\n",
		})
	}
	return m
}

func (m *fixture) write(files map[string]string) {
	m.t.Helper()
	for name, content := range files {
		path := filepath.Join(m.root, name)
		require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(m.t, os.WriteFile(path, []byte(content), 0o600))
	}
}

// provider returns the fixture's Provider, which keeps its readings.
func (m *fixture) provider() *stats.Provider {
	m.t.Helper()
	p, err := stats.New(stats.Deps{
		Runtime: m.runtime, Pods: func() []*corev1.Pod { return m.pods }, Clock: m.clock, Cgroups: m.groups,
		Layout: func() cm.NodeConfig { return m.layout }, RuntimePID: func() int { return 77 },
	}, stats.Config{NodeName: "n", RootDir: m.root, Proc: filepath.Join(m.root, "proc")})
	require.NoError(m.t, err)
	return p
}

// systems returns the system containers by name.
func systems(t *testing.T, p *stats.Provider, cpuAndMemory bool) map[string]statsapi.ContainerStats {
	t.Helper()
	s, err := p.Summary(t.Context(), cpuAndMemory)
	require.NoError(t, err)
	found := map[string]statsapi.ContainerStats{}
	for _, one := range s.Node.SystemContainers {
		require.NotContains(t, found, one.Name)
		found[one.Name] = one
	}
	return found
}

// runtimeWithoutPSI is a runtime with one Pod that does not report its pressure.
type runtimeWithoutPSI struct {
	stats.Runtime
	waits      *runtimeapi.PsiStats // for CPU, if not nil
	containers []*runtimeapi.ContainerStats
}

func (s *runtimeWithoutPSI) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest, ...grpc.CallOption) (
	*runtimeapi.ListPodSandboxStatsResponse, error,
) {
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu: &runtimeapi.CpuUsage{Psi: s.waits}, Memory: &runtimeapi.MemoryUsage{}, Containers: s.containers,
		},
	}}}, nil
}

func (*runtimeWithoutPSI) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (
	*runtimeapi.ImageFsInfoResponse, error,
) {
	return nil, errors.New("not supported")
}

// unifiedGroup returns the files of a cgroup v2, with every number multiplied by n.
func unifiedGroup(dir string, n int) map[string]string {
	stall := fmt.Sprintf("some avg10=%d.50 avg60=0.00 avg300=0.25 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n", n, 7*n)
	return map[string]string{
		dir + "/cpu.stat":            fmt.Sprintf("usage_usec %d\nuser_usec 1\nsystem_usec 2\nnr_periods 0\n", 3_000_000*n),
		dir + "/memory.current":      fmt.Sprintln(1000 * n),
		dir + "/memory.stat":         fmt.Sprintf("anon %d\nfile 700\ninactive_file %d\npgfault %d\npgmajfault %d\n", 200*n, 300*n, 12*n, 3*n),
		dir + "/memory.max":          "max\n",
		dir + "/memory.swap.current": fmt.Sprintln(40 * n),
		dir + "/memory.swap.max":     fmt.Sprintln(100 * n),
		dir + "/cpu.pressure":        stall, dir + "/memory.pressure": stall, dir + "/io.pressure": stall,
	}
}

// TestSystemContainersOfOneHierarchy uses cgroup v2 and reads twice.
func TestSystemContainersOfOneHierarchy(t *testing.T) {
	m := newFixture(t, cm.Hierarchy{Dir: "cgroup", Controllers: []string{"cpu", "memory", "io"}, Unified: true})
	m.layout.SystemCgroupsName = "/system.slice"
	m.write(map[string]string{
		"proc/self/cgroup": "0::/system.slice/berth.service\n", "proc/77/cgroup": "0::/system.slice/containerd.service\n",
	})
	m.write(unifiedGroup("cgroup/system.slice/berth.service", 1))
	m.write(unifiedGroup("cgroup/system.slice/containerd.service", 2))
	m.write(unifiedGroup("cgroup/kubepods", 3))
	m.write(map[string]string{"cgroup/kubepods/memory.max": "5000\n"})
	m.write(unifiedGroup("cgroup/system.slice", 4))
	created := time.Unix(1700000200, 0).UTC()
	require.NoError(t, os.Chtimes(filepath.Join(m.root, "cgroup/kubepods"), created, created))
	p := m.provider()
	found := systems(t, p, false)
	require.Len(t, found, 4)
	for n, name := range []string{"kubelet", "runtime", "pods", "misc"} {
		one, n := found[name], uint64(n+1)
		require.Equal(t, 3e9*float64(n), float64(*one.CPU.UsageCoreNanoSeconds), name)
		require.Nil(t, one.CPU.UsageNanoCores, "one reading gives no rate")
		require.Equal(t, 1000*n, *one.Memory.UsageBytes)
		require.Equal(t, 700*n, *one.Memory.WorkingSetBytes)
		require.Equal(t, 200*n, *one.Memory.RSSBytes)
		require.Equal(t, 12*n, *one.Memory.PageFaults)
		require.Equal(t, 3*n, *one.Memory.MajorPageFaults)
		require.Equal(t, 40*n, *one.Swap.SwapUsageBytes)
		require.Equal(t, 60*n, *one.Swap.SwapAvailableBytes)
		for _, pressure := range []*statsapi.PSIStats{one.CPU.PSI, one.Memory.PSI, one.IO.PSI} {
			require.Equal(t, statsapi.PSIData{Total: 7000 * n, Avg10: float64(n) + 0.5, Avg300: 0.25}, pressure.Some)
			require.EqualValues(t, 1000, pressure.Full.Total)
		}
		require.Nil(t, one.Rootfs)
	}
	require.Equal(t, uint64(5000-2100), *found["pods"].Memory.AvailableBytes)
	require.Nil(t, found["kubelet"].Memory.AvailableBytes, "there is no limit")
	require.Equal(t, int64(1700000003), found["runtime"].StartTime.Unix())
	require.Equal(t, created, found["pods"].StartTime.Time.UTC(), "of the directory")

	m.clock.Step(2 * time.Second)
	m.write(map[string]string{"cgroup/kubepods/cpu.stat": "usage_usec 10000000\n"})
	require.NoError(t, os.RemoveAll(filepath.Join(m.root, "cgroup/system.slice/containerd.service")))
	found = systems(t, p, true)
	require.Len(t, found, 3, "what cannot be read is left out")
	require.Equal(t, uint64(5e8), *found["pods"].CPU.UsageNanoCores, "a second of CPU time in two")
	require.Zero(t, *found["kubelet"].CPU.UsageNanoCores)
	require.Nil(t, found["pods"].Swap, "nothing but cpu and memory")
	require.Nil(t, found["pods"].IO)
}

// TestSystemContainersOfManyHierarchies uses cgroup v1, as seen by a container without its own cgroup namespace, beside
// an empty cgroup v2 hierarchy.
func TestSystemContainersOfManyHierarchies(t *testing.T) {
	m := newFixture(t,
		cm.Hierarchy{Dir: "cpu", Root: "/box", Controllers: []string{"cpu", "cpuacct"}},
		cm.Hierarchy{Dir: "memory", Root: "/box", Controllers: []string{"memory"}},
		cm.Hierarchy{Dir: "unified", Root: "/", Unified: true})
	for dir, n := range map[string]int{"/agent": 1, "/kubepods": 2} {
		m.write(map[string]string{
			"cpu" + dir + "/cpuacct.usage":            fmt.Sprintln(5_000_000_000 * n),
			"memory" + dir + "/memory.usage_in_bytes": fmt.Sprintln(1000 * n),
			"memory" + dir + "/memory.limit_in_bytes": "9223372036854771712\n",
			"memory" + dir + "/memory.stat": fmt.Sprintf("cache 9\nrss 1\nswap 1\ninactive_file 1\ntotal_rss %d\ntotal_swap %d\n"+
				"total_inactive_file %d\ntotal_pgfault %d\ntotal_pgmajfault %d\n", 200*n, 40*n, 300*n, 12*n, 3*n),
		})
	}
	m.write(map[string]string{
		"proc/self/cgroup": "4:memory:/box/agent\n2:cpu,cpuacct:/box/agent\n1:name=systemd:/x\n0::/\n",
		"proc/77/cgroup":   "4:memory:/box/agent\n2:cpu,cpuacct:/box\n0::/\n",
	})
	found := systems(t, m.provider(), false)
	require.Len(t, found, 3, "no fourth one is configured")
	for n, name := range []string{"kubelet", "pods"} {
		one, n := found[name], uint64(n+1)
		require.Equal(t, 5_000_000_000*n, *one.CPU.UsageCoreNanoSeconds, name)
		require.Equal(t, 1000*n, *one.Memory.UsageBytes)
		require.Equal(t, 700*n, *one.Memory.WorkingSetBytes)
		require.Equal(t, 200*n, *one.Memory.RSSBytes)
		require.Equal(t, 12*n, *one.Memory.PageFaults)
		require.Nil(t, one.Memory.AvailableBytes, "so large a limit is none")
		require.Equal(t, 40*n, *one.Swap.SwapUsageBytes)
		require.Nil(t, one.CPU.PSI, "version 1 does not count it")
	}
	process := found["runtime"]
	require.Equal(t, uint64(2e9), *process.CPU.UsageCoreNanoSeconds, "the root group is the machine: the process is measured")
	require.Equal(t, uint64(2000<<10), *process.Memory.WorkingSetBytes)
	require.Equal(t, uint64(1500<<10), *process.Memory.RSSBytes)
	require.Equal(t, uint64(7), *process.Memory.PageFaults)
	require.Equal(t, uint64(2), *process.Memory.MajorPageFaults)
	require.Equal(t, uint64(3<<10), *process.Swap.SwapUsageBytes)

	m.write(map[string]string{"proc/self/cgroup": "4:memory:/elsewhere\n2:cpu,cpuacct:/boxes\n0::/\n"})
	require.Equal(t, uint64(2e9), *systems(t, m.provider(), false)["kubelet"].CPU.UsageCoreNanoSeconds,
		"its group cannot be seen from here")
}

// TestPodPressureFromCgroup lets the kernel, the runtime, or neither report the pressure.
func TestPodPressureFromCgroup(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	summary := func(m *fixture, cpuAndMemory bool) statsapi.PodStats {
		m.pods = []*corev1.Pod{pod}
		s, err := m.provider().Summary(t.Context(), cpuAndMemory)
		require.NoError(t, err)
		require.Len(t, s.Pods, 1)
		return s.Pods[0]
	}
	unified := cm.Hierarchy{Dir: "cgroup", Controllers: []string{"cpu", "memory", "io"}, Unified: true}
	m := newFixture(t, unified)
	m.write(unifiedGroup("cgroup/kubepods/besteffort/podu", 2))
	one := summary(m, false)
	for _, pressure := range []*statsapi.PSIStats{one.CPU.PSI, one.Memory.PSI, one.IO.PSI} {
		require.Equal(t, 2.5, pressure.Some.Avg10)
		require.EqualValues(t, 14000, pressure.Some.Total)
	}
	require.Nil(t, summary(m, true).IO)
	require.NotNil(t, summary(m, true).CPU.PSI)

	m.runtime = &runtimeWithoutPSI{waits: &runtimeapi.PsiStats{Some: &runtimeapi.PsiData{Avg10: 9}}}
	require.EqualValues(t, 9, summary(m, false).CPU.PSI.Some.Avg10, "the runtime's value takes precedence")
	require.Equal(t, 2.5, summary(m, false).Memory.PSI.Some.Avg10)
	m.runtime = &completeRuntime{dir: m.root}
	require.Equal(t, 1.5, summary(m, false).CPU.PSI.Some.Avg10, "the runtime knows best")
	require.Equal(t, 1.5, summary(m, false).IO.PSI.Some.Avg10)

	m = newFixture(t, unified)
	one = summary(m, false)
	require.Nil(t, one.CPU.PSI, "a kernel that does not count it")
	require.Nil(t, one.IO)
	m = newFixture(t, cm.Hierarchy{Dir: "cgroup", Controllers: strings.Split("cpu,cpuacct,memory", ",")})
	m.write(unifiedGroup("cgroup/kubepods/besteffort/podu", 2))
	require.Nil(t, summary(m, false).CPU.PSI, "version 1 has no such files, whatever lies there")
}

// TestSwapFromCgroup has containers whose swap the runtime does not report, in cgroups of either driver, one that it reports, and one whose
// cgroup is gone.
func TestSwapFromCgroup(t *testing.T) {
	container := func(id string, swap *runtimeapi.SwapUsage) *runtimeapi.ContainerStats {
		return &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: id}},
			Cpu:        &runtimeapi.CpuUsage{}, Swap: swap,
		}
	}
	runtime := &runtimeWithoutPSI{containers: []*runtimeapi.ContainerStats{
		container("plain", nil), container("scope", nil), container("gone", nil),
		container("reported", &runtimeapi.SwapUsage{SwapUsageBytes: &runtimeapi.UInt64Value{Value: 5}}),
	}}
	read := func(m *fixture) statsapi.PodStats {
		m.runtime = runtime
		m.pods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}}
		s, err := m.provider().Summary(t.Context(), true)
		require.NoError(t, err)
		require.Len(t, s.Pods[0].Containers, 4)
		return s.Pods[0]
	}
	m := newFixture(t, cm.Hierarchy{Dir: "cgroup", Controllers: []string{"cpu", "memory", "io"}, Unified: true})
	m.write(unifiedGroup("cgroup/kubepods/besteffort/podu/plain", 1))
	m.write(unifiedGroup("cgroup/kubepods/besteffort/podu/cri-containerd-scope.scope", 2))
	pod := read(m)
	require.EqualValues(t, 40, *pod.Containers[0].Swap.SwapUsageBytes)
	require.EqualValues(t, 60, *pod.Containers[0].Swap.SwapAvailableBytes)
	require.EqualValues(t, 80, *pod.Containers[1].Swap.SwapUsageBytes)
	require.Nil(t, pod.Containers[2].Swap)
	require.EqualValues(t, 5, *pod.Containers[3].Swap.SwapUsageBytes, "the runtime knows best")
	require.EqualValues(t, 40+80+5, *pod.Swap.SwapUsageBytes)

	m = newFixture(t, cm.Hierarchy{Dir: "cgroup", Controllers: strings.Split("cpu,cpuacct,memory", ",")})
	m.write(map[string]string{"cgroup/kubepods/besteffort/podu/plain/memory.stat": "rss 1\ntotal_swap 7\n"})
	pod = read(m)
	require.EqualValues(t, 7, *pod.Containers[0].Swap.SwapUsageBytes)
	require.EqualValues(t, 7+5, *pod.Swap.SwapUsageBytes)
}
