package cm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func podOf(uid types.UID, parts ...corev1.ResourceRequirements) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: uid}}
	for i, part := range parts {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Resources: part})
	}
	return pod
}

func TestFormulas(t *testing.T) {
	for milli, want := range map[int64]int64{0: 2, 1: 2, 2: 2, 3: 3, 100: 102, 1000: 1024, 256000: 262144, 1 << 60: 262144} {
		require.Equal(t, want, Shares(milli), milli)
	}
	for milli, want := range map[int64]int64{0: 0, 1: 1000, 10: 1000, 11: 1100, 500: 50000, 2000: 200000} {
		require.Equal(t, want, Quota(milli, DefaultQuotaPeriod), milli)
	}
	require.Positive(t, Quota(1<<62, DefaultQuotaPeriod), "no overflow")
	for shares, want := range map[int64]uint64{0: 0, 1: 1, 2: 1, 512: 20, 1024: 39, 4096: 157, 262144: 10000, 1 << 40: 10000} {
		require.Equal(t, want, cpuWeight(shares), shares)
	}
	for bytes, want := range map[int64]string{64 << 10: "64KB", 2 << 20: "2MB", 1 << 30: "1GB", 16 << 30: "16GB"} {
		require.Equal(t, want, kernelPageSize(bytes))
	}
}

func TestContainerResources(t *testing.T) {
	v1opts := ResourceOptions{MemoryCapacity: 8 << 30, Swap: true, HugePageSizes: []string{"2MB", "1GB"}}
	v2opts := ResourceOptions{MemoryCapacity: 8 << 30, Swap: true, Unified: true}
	huge := []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}, {PageSize: "1GB"}}
	none := []*runtimeapi.HugepageLimit{{PageSize: "2MB"}, {PageSize: "1GB"}}
	whole := podOf("u", corev1.ResourceRequirements{})
	whole.Spec.Resources = &corev1.ResourceRequirements{Limits: amounts("cpu", "1", "memory", "1Gi")}

	for name, c := range map[string]struct {
		pod  *corev1.Pod
		opts ResourceOptions
		want *runtimeapi.LinuxContainerResources
	}{
		"nothing": {podOf("u", corev1.ResourceRequirements{}), v1opts, &runtimeapi.LinuxContainerResources{
			CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000, HugepageLimits: none}},
		"request and limit": {podOf("u", corev1.ResourceRequirements{
			Requests: amounts("cpu", "250m", "memory", "2Gi"), Limits: amounts("cpu", "500m", "memory", "4Gi", "hugepages-2Mi", "4Mi"),
		}), v1opts, &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 256, OomScoreAdj: 750,
			MemoryLimitInBytes: 4 << 30, MemorySwapLimitInBytes: 4 << 30, HugepageLimits: huge}},
		"no request": {podOf("u", corev1.ResourceRequirements{Limits: amounts("cpu", "2")}), v1opts,
			&runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 200000, CpuShares: 2048, OomScoreAdj: 999, HugepageLimits: none}},
		"no quota": {podOf("u", corev1.ResourceRequirements{Limits: amounts("cpu", "2")}),
			ResourceOptions{MemoryCapacity: 8 << 30, NoCPUQuota: true}, &runtimeapi.LinuxContainerResources{CpuShares: 2048, OomScoreAdj: 999}},
		"the Pod's limits": {whole, v1opts, &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 100000, CpuShares: 1024,
			OomScoreAdj: 999, MemoryLimitInBytes: 1 << 30, MemorySwapLimitInBytes: 1 << 30, HugepageLimits: none}},
		"v2": {podOf("u", corev1.ResourceRequirements{}), v2opts, &runtimeapi.LinuxContainerResources{
			CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000,
			Unified: map[string]string{"memory.oom.group": "1", "memory.swap.max": "0"}}},
		"v2, one process": {podOf("u", corev1.ResourceRequirements{}), ResourceOptions{Unified: true, SingleProcessOOMKill: true},
			&runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want.String(), ContainerResources(c.pod, &c.pod.Spec.Containers[0], c.opts).String())
		})
	}
}

// TestSwap has a node with 8 GiB of memory and 4 GiB of swap: half a byte of swap for each byte that is asked for.
func TestSwap(t *testing.T) {
	const gib = 1 << 30
	asks := corev1.ResourceRequirements{Requests: amounts("memory", "2Gi"), Limits: amounts("memory", "4Gi")}
	change := func(change func(pod *corev1.Pod, opts *ResourceOptions)) (*corev1.Pod, ResourceOptions) {
		pod := podOf("u", asks)
		opts := ResourceOptions{
			MemoryCapacity: 8 * gib, SwapCapacity: 4 * gib, SwapBehavior: LimitedSwap, Unified: true, Swap: true,
		}
		change(pod, &opts)
		return pod, opts
	}
	none := map[string]string{"memory.oom.group": "1", "memory.swap.max": "0"}
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod, opts *ResourceOptions)
		want   map[string]string
	}{
		"a share":      {func(*corev1.Pod, *ResourceOptions) {}, map[string]string{"memory.oom.group": "1", "memory.swap.max": "1073741824"}},
		"by default":   {func(_ *corev1.Pod, o *ResourceOptions) { o.SwapBehavior = "" }, none},
		"NoSwap":       {func(_ *corev1.Pod, o *ResourceOptions) { o.SwapBehavior = NoSwap }, none},
		"no swap here": {func(_ *corev1.Pod, o *ResourceOptions) { o.SwapCapacity = 0 }, none},
		"not accounted for": {func(_ *corev1.Pod, o *ResourceOptions) { o.Swap = false },
			map[string]string{"memory.oom.group": "1"}},
		"asks for no memory": {func(p *corev1.Pod, _ *ResourceOptions) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: amounts("cpu", "1")}
		}, none},
		"BestEffort": {func(p *corev1.Pod, _ *ResourceOptions) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
		}, none},
		"limit is request": {func(p *corev1.Pod, _ *ResourceOptions) {
			p.Spec.Containers[0].Resources.Requests = amounts("memory", "4Gi") // without a request of CPU it is Burstable
		}, none},
		"Guaranteed": {func(p *corev1.Pod, _ *ResourceOptions) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
				Requests: amounts("cpu", "1", "memory", "1Gi"), Limits: amounts("cpu", "1", "memory", "1Gi"),
			}
		}, none},
		"critical": {func(p *corev1.Pod, _ *ResourceOptions) { p.Spec.Priority = ptr.To[int32](2_000_000_000) }, none},
		"static": {func(p *corev1.Pod, _ *ResourceOptions) {
			p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		}, none},
		"v1": {func(_ *corev1.Pod, o *ResourceOptions) { o.Unified = false }, nil},
		"more than 64 bits": {func(p *corev1.Pod, o *ResourceOptions) {
			p.Spec.Containers[0].Resources.Requests = amounts("memory", "4Ti")
			o.MemoryCapacity, o.SwapCapacity = 8<<40, 16<<40
		}, map[string]string{"memory.oom.group": "1", "memory.swap.max": fmt.Sprint(int64(8 << 40))}},
	} {
		t.Run(name, func(t *testing.T) {
			pod, opts := change(c.change)
			got := ContainerResources(pod, &pod.Spec.Containers[0], opts)
			require.Equal(t, c.want, got.Unified)
			if !opts.Unified {
				require.EqualValues(t, 4*gib, got.MemorySwapLimitInBytes, "memory and swap together: none of the latter")
			}
		})
	}
	require.NoError(t, errors.Join(SwapBehavior("").Validate(), NoSwap.Validate(), LimitedSwap.Validate()))
	require.ErrorContains(t, SwapBehavior("UnlimitedSwap").Validate(), "memorySwap.swapBehavior")
}

func TestPodLimits(t *testing.T) {
	full := corev1.ResourceRequirements{Requests: amounts("cpu", "1", "memory", "1Gi"), Limits: amounts("cpu", "1", "memory", "1Gi")}
	half := corev1.ResourceRequirements{Requests: amounts("cpu", "500m"), Limits: amounts("memory", "1Gi")}
	noHuge := map[string]uint64{}
	whole := podOf("u", corev1.ResourceRequirements{})
	whole.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "1"), Limits: amounts("cpu", "2", "memory", "1Gi")}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want Limits
	}{
		"BestEffort":                     {podOf("u", corev1.ResourceRequirements{}), Limits{CPUShares: 2, Pids: 100, Hugepages: noHuge}},
		"Guaranteed":                     {podOf("u", full, full), Limits{CPUShares: 2048, CPUQuota: 200000, CPUPeriod: 100000, Memory: 2 << 30, Pids: 100, Hugepages: noHuge}},
		"one container has no CPU limit": {podOf("u", full, half), Limits{CPUShares: 1536, Memory: 2 << 30, Pids: 100, Hugepages: noHuge}},
		"as a whole":                     {whole, Limits{CPUShares: 1024, CPUQuota: 200000, CPUPeriod: 100000, Memory: 1 << 30, Pids: 100, Hugepages: noHuge}},
		"huge pages": {podOf("u", corev1.ResourceRequirements{Requests: amounts("cpu", "1", "hugepages-2Mi", "4Mi")}),
			Limits{CPUShares: 1024, Pids: 100, Hugepages: map[string]uint64{"2MB": 4 << 20}}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, PodLimits(c.pod, 100, ResourceOptions{})) })
	}
}

func TestNames(t *testing.T) {
	burstable := podOf("12-ab", corev1.ResourceRequirements{Requests: amounts("cpu", "1")})
	for driver, want := range map[Driver]string{
		DriverCgroupfs: "/berth-1/kubepods/burstable/pod12-ab",
		DriverSystemd: "/berth_1.slice/berth_1-kubepods.slice/berth_1-kubepods-burstable.slice/" +
			"berth_1-kubepods-burstable-pod12_ab.slice",
	} {
		m, err := New(Deps{}, Config{CgroupRoot: "/berth-1", Driver: driver})
		require.NoError(t, err)
		require.Equal(t, want, m.CgroupParent(burstable))
		uid, ok := m.podUID(filepath.Base(want))
		require.True(t, ok)
		require.Equal(t, types.UID("12-ab"), uid)
		for _, not := range []string{"burstable", "cpu.shares", "kubepods-burstable.slice", "pod"} {
			_, ok = m.podUID(not)
			require.False(t, ok, not)
		}
	}
	plain, err := New(Deps{}, Config{})
	require.NoError(t, err)
	full := corev1.ResourceRequirements{Limits: amounts("cpu", "1", "memory", "1Gi"), Requests: amounts("cpu", "1", "memory", "1Gi")}
	require.Equal(t, "/kubepods/podg", plain.CgroupParent(podOf("g", full)))
	require.Equal(t, "/kubepods/besteffort/podb", plain.CgroupParent(podOf("b", corev1.ResourceRequirements{})))
	_, err = New(Deps{}, Config{Driver: "docker"})
	require.ErrorContains(t, err, "cgroupDriver")
	plain.SetDriver(DriverSystemd)
	require.Equal(t, "/kubepods.slice/kubepods-podg.slice", plain.CgroupParent(podOf("g", full)), "as the runtime has said later")
	_, err = New(Deps{}, Config{CgroupRoot: "/a/../b"})
	require.ErrorContains(t, err, "cgroupRoot")
}

// TestLegacy runs on the machine's own hierarchies of version 1, below a group of its own.
func TestLegacy(t *testing.T) {
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v1")
	}
	root := fmt.Sprintf("/berth-test-%d", os.Getpid())
	m, err := New(Deps{}, Config{CgroupRoot: root, PodPidsLimit: 50})
	require.NoError(t, err)
	ctx := t.Context()
	t.Cleanup(func() { require.NoError(t, m.RemoveRoot(context.Background())) })
	require.NoError(t, m.EnsureRoot(ctx))
	require.NoError(t, m.EnsureRoot(ctx), "again")

	pod := podOf("u-1", corev1.ResourceRequirements{Requests: amounts("cpu", "500m"), Limits: amounts("cpu", "1", "memory", "64Mi")})
	parent, err := m.EnsurePod(ctx, pod)
	require.NoError(t, err)
	require.Equal(t, root+"/kubepods/burstable/podu-1", parent)
	require.NoError(t, m.UpdateClasses(ctx, Requests{BurstableCPU: 500}))
	found, err := FindHierarchies()
	require.NoError(t, err)
	dirs := map[string]string{}
	for _, h := range found {
		for _, c := range h.Controllers {
			dirs[c] = h.Dir
		}
	}
	expect := func(controller, group, file, want string) {
		t.Helper()
		if dirs[controller] == "" {
			return
		}
		content, err := os.ReadFile(filepath.Join(dirs[controller], group, file))
		require.NoError(t, err)
		require.Equal(t, want, strings.TrimSpace(string(content)))
	}
	expect("cpu", parent, "cpu.shares", "512")
	expect("cpu", parent, "cpu.cfs_quota_us", "100000")
	expect("memory", parent, "memory.limit_in_bytes", fmt.Sprint(64<<20))
	expect("pids", parent, "pids.max", "50")
	expect("cpu", root+"/kubepods/besteffort", "cpu.shares", "2")
	expect("cpu", root+"/kubepods/burstable", "cpu.shares", "512")

	pod.Spec.Containers[0].Resources.Limits = amounts("cpu", "2", "memory", "128Mi")
	_, err = m.EnsurePod(ctx, pod)
	require.NoError(t, err)
	expect("memory", parent, "memory.limit_in_bytes", fmt.Sprint(128<<20))

	_, err = m.EnsurePod(ctx, podOf("u-2", corev1.ResourceRequirements{}))
	require.NoError(t, err)
	uids, err := m.Pods()
	require.NoError(t, err)
	require.Equal(t, []types.UID{"u-1", "u-2"}, uids)

	// A runtime leaves a container's group behind, with processes in it that have ignored everything.
	leftover := filepath.Join(dirs["pids"], parent, "container")
	require.NoError(t, os.Mkdir(leftover, 0o755))
	child := exec.Command("sh", "-c", "trap '' TERM; sleep 1000 & wait")
	require.NoError(t, child.Start())
	require.NoError(t, os.WriteFile(filepath.Join(leftover, "cgroup.procs"), []byte(fmt.Sprint(child.Process.Pid)), 0o644))
	require.NoError(t, m.RemovePod(ctx, "u-1"))
	require.ErrorContains(t, child.Wait(), "killed")
	uids, err = m.Pods()
	require.NoError(t, err)
	require.Equal(t, []types.UID{"u-2"}, uids)
	require.NoError(t, m.RemovePod(ctx, "u-1"), "again")

	require.NoError(t, m.EnforceAllocatable(ctx, amounts("cpu", "1500m", "memory", "1Gi", "pid", "1000")))
	expect("cpu", root+"/kubepods", "cpu.shares", "1536")
	expect("memory", root+"/kubepods", "memory.limit_in_bytes", fmt.Sprint(1<<30))
	expect("pids", root+"/kubepods", "pids.max", "1000")

	// A cgroup of the node's own programs, which exists already.
	own := root + "/system"
	require.ErrorContains(t, m.EnforceReserved(ctx, own, amounts("memory", "1Gi")), "must create it")
	require.ErrorContains(t, m.EnforceReserved(ctx, "/", amounts("memory", "1Gi")), "below the root")
	for _, c := range []string{"cpu", "memory", "pids"} {
		if dirs[c] != "" {
			require.NoError(t, os.Mkdir(filepath.Join(dirs[c], own), 0o755))
		}
	}
	require.NoError(t, m.EnforceReserved(ctx, own, amounts("cpu", "500m", "memory", "1Gi", "pid", "70")))
	expect("cpu", own, "cpu.shares", "512")
	expect("memory", own, "memory.limit_in_bytes", fmt.Sprint(1<<30))
	expect("pids", own, "pids.max", "70")
	for _, c := range []string{"cpu", "memory", "pids"} {
		if dirs[c] != "" {
			require.NoError(t, os.Remove(filepath.Join(dirs[c], own)))
		}
	}

	require.NoError(t, m.RemoveRoot(ctx))
	for _, h := range found {
		require.NoDirExists(t, filepath.Join(h.Dir, root))
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w, err := os.Pipe() // stands for a process that never exits: nothing ever comes out of it
	require.NoError(t, err)
	defer func() { _ = r.Close(); _ = w.Close() }()
	waited := make(chan error, 1)
	go func() { waited <- waitReadable(ctx, []int{int(r.Fd())}) }()
	cancel()
	require.ErrorIs(t, <-waited, context.Canceled)
}

// unifiedHierarchy makes a directory that looks like a hierarchy of version 2 to whoever writes to it. The kernel's part,
// filling new groups with files, is played by the test.
func unifiedHierarchy(t *testing.T, groups ...string) Hierarchy {
	t.Helper()
	cgroupslib.TestMode = true
	t.Cleanup(func() { cgroupslib.TestMode = false })
	dir := t.TempDir()
	for _, group := range append([]string{""}, groups...) {
		at := filepath.Join(dir, group)
		require.NoError(t, os.MkdirAll(at, 0o755))
		for file, content := range map[string]string{
			"cgroup.controllers": "cpu memory pids hugetlb", "cgroup.subtree_control": "", "cpu.weight": "", "cpu.max": "",
			"memory.max": "", "pids.max": "", "hugetlb.2MB.max": "", "hugetlb.2MB.rsvd.max": "", "cgroup.procs": "",
		} {
			require.NoError(t, os.WriteFile(filepath.Join(at, file), []byte(content), 0o600))
		}
	}
	return Hierarchy{Dir: dir, Controllers: []string{"cpu", "memory", "pids", "hugetlb"}, Unified: true}
}

func TestUnified(t *testing.T) {
	const group = "/b/kubepods/burstable/podu-1"
	h := unifiedHierarchy(t, "b", "b/kubepods", "b/kubepods/burstable", group)
	m, err := New(Deps{}, Config{CgroupRoot: "b", PodPidsLimit: 50, Hierarchies: []Hierarchy{h}})
	require.NoError(t, err)
	pod := podOf("u-1", corev1.ResourceRequirements{
		Requests: amounts("cpu", "1", "hugepages-2Mi", "4Mi"), Limits: amounts("cpu", "1500m", "memory", "64Mi")})
	parent, err := m.EnsurePod(t.Context(), pod)
	require.NoError(t, err)
	require.Equal(t, group, parent)
	for file, want := range map[string]string{
		group + "/cpu.weight":       "39", // 1024 shares
		group + "/cpu.max":          "150000 100000",
		group + "/memory.max":       fmt.Sprint(64 << 20),
		group + "/pids.max":         "50",
		group + "/hugetlb.2MB.max":  fmt.Sprint(4 << 20),
		"/b/cgroup.subtree_control": "+pids", // a plain file keeps only what is written last: controllers of threads come last
	} {
		content, err := os.ReadFile(filepath.Join(h.Dir, file))
		require.NoError(t, err)
		require.Equal(t, want, strings.TrimSpace(string(content)), file)
	}
	uids, err := m.Pods()
	require.NoError(t, err)
	require.Equal(t, []types.UID{"u-1"}, uids)

	require.NoError(t, m.EnforceReserved(t.Context(), "b/kubepods/burstable", amounts("pid", "7")))
	content, err := os.ReadFile(filepath.Join(h.Dir, "b/kubepods/burstable/pids.max"))
	require.NoError(t, err)
	require.Equal(t, "7", strings.TrimSpace(string(content)))
	require.NoError(t, m.EnforceAllocatable(t.Context(), amounts("cpu", "1", "memory", "1Gi")))
	content, err = os.ReadFile(filepath.Join(h.Dir, "b/kubepods/memory.max"))
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(1<<30), strings.TrimSpace(string(content)))
}

func TestUnifiedWithoutAController(t *testing.T) {
	h := unifiedHierarchy(t, "kubepods", "kubepods/besteffort", "kubepods/besteffort/podu-1")
	group := filepath.Join(h.Dir, "kubepods/besteffort/podu-1")
	require.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.controllers"), []byte("cpu"), 0o600))
	m, err := New(Deps{}, Config{PodPidsLimit: 50, Hierarchies: []Hierarchy{h}})
	require.NoError(t, err)
	_, err = m.EnsurePod(t.Context(), podOf("u-1", corev1.ResourceRequirements{}))
	require.NoError(t, err)
	content, err := os.ReadFile(filepath.Join(group, "pids.max"))
	require.NoError(t, err)
	require.Empty(t, content, "the group does not have the controller")
}
