package stats_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/diskusage"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/stats"
	"github.com/berth-dev/berth/volume"
)

type runtime struct {
	stats.Runtime
	err error
}

func (r *runtime) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest, ...grpc.CallOption) (
	*runtimeapi.ListPodSandboxStatsResponse, error,
) {
	cpu := &runtimeapi.CpuUsage{Timestamp: 1e9, UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: 3e9}}
	memory := &runtimeapi.MemoryUsage{Timestamp: 1e9, WorkingSetBytes: &runtimeapi.UInt64Value{Value: 77}}
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"},
		},
		Linux: &runtimeapi.LinuxPodSandboxStats{Cpu: cpu, Memory: memory,
			Network: &runtimeapi.NetworkUsage{DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0"}},
			Containers: []*runtimeapi.ContainerStats{{
				Attributes: &runtimeapi.ContainerAttributes{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}},
				Cpu:        cpu, Memory: memory, WritableLayer: &runtimeapi.FilesystemUsage{},
			}}},
	}}}, r.err
}

func (*runtime) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest, ...grpc.CallOption) (
	*runtimeapi.ListContainerStatsResponse, error,
) {
	return &runtimeapi.ListContainerStatsResponse{}, nil
}

func (*runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (
	*runtimeapi.ImageFsInfoResponse, error,
) {
	return nil, errors.New("not supported")
}

type volumes struct{}

func (volumes) Stats(context.Context, types.UID) (map[string]volume.Stats, error) {
	return map[string]volume.Stats{"data": {Capacity: 100, Used: 40}}, nil
}

func (volumes) LocalUsage(context.Context, types.UID) (map[string]diskusage.Usage, error) {
	return map[string]diskusage.Usage{"cache": {Bytes: 7, Inodes: 2}}, nil
}

func provider(t *testing.T, runtime *runtime, clock *clocktesting.FakeClock) (*stats.Provider, string) {
	proc := t.TempDir()
	write(t, proc, "stat", "cpu  100 0 100 9000 9000 0 0 0 50 0\ncpu0 1 2 3\nbtime 1700000000\n")
	write(t, proc, "meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 60 kB\nSReclaimable: 40 kB\nSwapTotal: 8 kB\nSwapFree: 5 kB\n")
	started := metav1.NewTime(time.Unix(1700000100, 0))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
	}}
	p, err := stats.New(stats.Deps{
		Runtime: runtime, Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} }, Volumes: volumes{}, Clock: clock,
	}, stats.Config{NodeName: "n", RootDir: proc, Proc: proc})
	require.NoError(t, err)
	return p, proc
}

func write(t *testing.T, dir, name, content string) {
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

func TestSummary(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1800000000, 0))
	p, proc := provider(t, &runtime{}, clock)
	s, err := p.Summary(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, uint64(2e9), *s.Node.CPU.UsageCoreNanoSeconds, "200 ticks of user and system time")
	require.Nil(t, s.Node.CPU.UsageNanoCores, "one reading gives no rate")
	require.Equal(t, uint64(500<<10), *s.Node.Memory.WorkingSetBytes)
	require.Equal(t, uint64(3<<10), *s.Node.Swap.SwapUsageBytes)
	require.NotNil(t, s.Node.Fs)
	require.Nil(t, s.Node.Runtime, "the runtime does not report it")
	require.Len(t, s.Pods, 1)
	require.Equal(t, "eth0", s.Pods[0].Network.Name)
	require.Equal(t, "claim", s.Pods[0].VolumeStats[0].PVCRef.Name)
	require.Equal(t, uint64(40), *s.Pods[0].VolumeStats[0].UsedBytes)
	require.Equal(t, int64(1700000100), s.Pods[0].Containers[0].StartTime.Unix())

	clock.Step(2 * time.Second)
	write(t, proc, "stat", "cpu  200 0 100 9000 9000 0 0 0 50 0\nbtime 1700000000\n")
	s, err = p.Summary(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, uint64(5e8), *s.Node.CPU.UsageNanoCores, "half a core for two seconds")
	require.Nil(t, s.Pods[0].Network)
	require.Nil(t, s.Node.Fs)
}

// TestTerminationMessagesCountAsLogs has a container that writes 1 MiB to the file of its termination message.
func TestTerminationMessagesCountAsLogs(t *testing.T) {
	root, logs := t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(logs, "c"), 0o755))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	pod.Spec.Containers = []corev1.Container{{Name: "c"}}
	p, err := stats.New(stats.Deps{
		Runtime: &runtime{}, Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} }, Volumes: volumes{},
		LogDir: func(*corev1.Pod) string { return logs },
	}, stats.Config{NodeName: "n", RootDir: root, Proc: root})
	require.NoError(t, err)
	path, err := kuberuntime.CreateTerminationLog(volume.PodDir(root, "u"), "c", 0)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	used, err := p.LocalStorage(t.Context(), pod, true)
	require.NoError(t, err)
	require.GreaterOrEqual(t, used.Logs["c"], int64(1<<20))
	all, err := p.Usage(t.Context(), true)
	require.NoError(t, err)
	require.GreaterOrEqual(t, *all["u"].Containers[0].Logs.UsedBytes, uint64(1<<20))
}

// TestHostsFileCountsAsEphemeralStorage has a container that writes 1 MiB to its /etc/hosts.
func TestHostsFileCountsAsEphemeralStorage(t *testing.T) {
	root := t.TempDir()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	p, err := stats.New(stats.Deps{
		Runtime: &runtime{}, Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} }, Volumes: volumes{},
	}, stats.Config{NodeName: "n", RootDir: root})
	require.NoError(t, err)
	before, err := p.Summary(t.Context(), false)
	require.NoError(t, err)
	hosts := kuberuntime.HostsPath(volume.PodDir(root, "u"))
	require.NoError(t, os.MkdirAll(filepath.Dir(hosts), 0o750))
	require.NoError(t, os.WriteFile(hosts, make([]byte, 1<<20), 0o600))
	used, err := p.LocalStorage(t.Context(), pod, true)
	require.NoError(t, err)
	require.GreaterOrEqual(t, used.Hosts, int64(1<<20))
	after, err := p.Summary(t.Context(), false)
	require.NoError(t, err)
	require.GreaterOrEqual(t, *after.Pods[0].EphemeralStorage.UsedBytes-*before.Pods[0].EphemeralStorage.UsedBytes, uint64(1<<20))
}

func TestResourceMetrics(t *testing.T) {
	r := &runtime{}
	p, _ := provider(t, r, clocktesting.NewFakeClock(time.Unix(1800000000, 0)))
	require.Equal(t, map[string]float64{
		"node_cpu_usage_seconds_total": 2, "node_memory_working_set_bytes": 500 << 10, "node_swap_usage_bytes": 3 << 10,
		"pod_cpu_usage_seconds_total": 3, "pod_memory_working_set_bytes": 77, "container_cpu_usage_seconds_total": 3,
		"container_memory_working_set_bytes": 77, "container_start_time_seconds": 1700000100, "resource_scrape_error": 0,
	}, values(t, p.Resources(t.Context())))
	families, err := p.Resources(t.Context()).Gather()
	require.NoError(t, err)
	measured := map[string]int64{} // in milliseconds; none for what is not measured
	for _, family := range families {
		measured[family.GetName()] = family.Metric[0].GetTimestampMs()
	}
	const now, ofRuntime = 1800000000_000, 1_000
	require.Equal(t, map[string]int64{
		"node_cpu_usage_seconds_total": now, "node_memory_working_set_bytes": now, "node_swap_usage_bytes": now,
		"pod_cpu_usage_seconds_total": ofRuntime, "pod_memory_working_set_bytes": ofRuntime, "container_cpu_usage_seconds_total": ofRuntime,
		"container_memory_working_set_bytes": ofRuntime, "container_start_time_seconds": 0, "resource_scrape_error": 0,
	}, measured)
	r.err = errors.New("away")
	require.Equal(t, map[string]float64{"resource_scrape_error": 1}, values(t, p.Resources(t.Context())))
}

// TestRestartedContainerIsReportedOnce has a runtime that lists the container that ended beside the one that runs.
func TestRestartedContainerIsReportedOnce(t *testing.T) {
	number := func(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }
	of := func(attempt uint32, cpu *runtimeapi.CpuUsage) *runtimeapi.ContainerStats {
		return &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Metadata: &runtimeapi.ContainerMetadata{Name: "c", Attempt: attempt}}, Cpu: cpu,
		}
	}
	r := &runtimeWithoutPSI{containers: []*runtimeapi.ContainerStats{
		of(0, nil), of(2, &runtimeapi.CpuUsage{UsageCoreNanoSeconds: number(5e9)}), of(1, nil),
	}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	proc := t.TempDir()
	write(t, proc, "stat", "cpu  100 0 100 9000 9000 0 0 0 50 0\nbtime 1700000000\n")
	write(t, proc, "meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\n")
	p, err := stats.New(stats.Deps{Runtime: r, Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} }, Volumes: volumes{}},
		stats.Config{NodeName: "n", RootDir: proc, Proc: proc})
	require.NoError(t, err)
	s, err := p.Summary(t.Context(), false)
	require.NoError(t, err)
	require.Len(t, s.Pods[0].Containers, 1)
	require.EqualValues(t, 5e9, *s.Pods[0].Containers[0].CPU.UsageCoreNanoSeconds)
	require.EqualValues(t, 5, values(t, p.Resources(t.Context()))["container_cpu_usage_seconds_total"])
}

// TestEndedContainersAreOmitted has a runtime that lists an init container that has succeeded, with or without measurements. Beside one without
// CPU time metrics-server leaves out the whole Pod.
func TestEndedContainersAreOmitted(t *testing.T) {
	zero := &runtimeapi.UInt64Value{}
	of := func(id, name string) *runtimeapi.ContainerStats {
		return &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: name}},
			Cpu:        &runtimeapi.CpuUsage{UsageCoreNanoSeconds: zero}, Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: zero},
		}
	}
	unmeasured := of("2", "debug")
	unmeasured.Cpu, unmeasured.Memory = nil, nil
	r := &runtimeWithoutPSI{containers: []*runtimeapi.ContainerStats{of("1", "init"), unmeasured, of("3", "crashed"), of("4", "main")}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	end := func(id string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "containerd://" + id}}
	}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", State: end("1")}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "crashed", LastTerminationState: end("3")}, {Name: "main", State: end("0")}, // it was started again meanwhile
	}
	proc := t.TempDir()
	write(t, proc, "stat", "cpu  100 0 100 9000 9000 0 0 0 50 0\nbtime 1700000000\n")
	write(t, proc, "meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\n")
	p, err := stats.New(stats.Deps{Runtime: r, Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} }}, stats.Config{NodeName: "n", RootDir: proc, Proc: proc})
	require.NoError(t, err)
	for _, cpuAndMemory := range []bool{false, true} {
		s, err := p.Summary(t.Context(), cpuAndMemory)
		require.NoError(t, err)
		require.Len(t, s.Pods[0].Containers, 1)
		require.Equal(t, "main", s.Pods[0].Containers[0].Name)
	}
}

func values(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	families, err := g.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		out[f.GetName()] = f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
	}
	return out
}

// TestSummaryOfAMachineWithManyInterrupts has a line of /proc/stat with one number for each of them.
func TestSummaryOfAMachineWithManyInterrupts(t *testing.T) {
	p, proc := provider(t, &runtime{}, clocktesting.NewFakeClock(time.Unix(1800000000, 0)))
	write(t, proc, "stat", "cpu  100 0 100 9000 9000 0 0 0 50 0\nintr 9"+strings.Repeat(" 123456789", 20_000)+"\nbtime 1700000000\n")
	s, err := p.Summary(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, uint64(2e9), *s.Node.CPU.UsageCoreNanoSeconds)
	require.EqualValues(t, 1700000000, s.Node.StartTime.Unix())
}

// twoPods are the Pods bad, one of whose volumes cannot be measured, and good.
type twoPods struct {
	stats.Runtime
	volumes
}

func (twoPods) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest, ...grpc.CallOption) (
	*runtimeapi.ListPodSandboxStatsResponse, error,
) {
	out := &runtimeapi.ListPodSandboxStatsResponse{}
	for _, uid := range []string{"bad", "good"} {
		out.Stats = append(out.Stats, &runtimeapi.PodSandboxStats{
			Attributes: &runtimeapi.PodSandboxAttributes{Metadata: &runtimeapi.PodSandboxMetadata{Name: uid, Namespace: "ns", Uid: uid}},
			Linux:      &runtimeapi.LinuxPodSandboxStats{Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: &runtimeapi.UInt64Value{Value: 77}}},
		})
	}
	return out, nil
}

func (v twoPods) LocalUsage(ctx context.Context, uid types.UID) (map[string]diskusage.Usage, error) {
	used, err := v.volumes.LocalUsage(ctx, uid)
	if uid == "bad" {
		err = errors.New("input/output error") // of another volume
	}
	return used, err
}

// TestUsageOfOtherPodsIsKnown: a Pod that is not measured is the first one to be evicted, so that a volume that cannot be measured must not
// keep others from it.
func TestUsageOfOtherPodsIsKnown(t *testing.T) {
	var pods []*corev1.Pod
	for _, uid := range []types.UID{"bad", "good"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), Namespace: "ns", UID: uid}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "cache"}}
		pods = append(pods, pod)
	}
	p, err := stats.New(stats.Deps{Runtime: twoPods{}, Pods: func() []*corev1.Pod { return pods }, Volumes: twoPods{}}, stats.Config{RootDir: t.TempDir()})
	require.NoError(t, err)
	usage, err := p.Usage(t.Context(), true)
	require.ErrorContains(t, err, "input/output error")
	require.EqualValues(t, 7, *usage["bad"].VolumeStats[0].UsedBytes, "what is known of it")
	require.Contains(t, usage, "good")
	require.EqualValues(t, 7, *usage["good"].VolumeStats[0].UsedBytes)
	local, err := p.LocalStorage(t.Context(), pods[0], false)
	require.ErrorContains(t, err, "input/output error")
	require.Equal(t, map[string]int64{"cache": 7}, local.Volumes)
}

// meeting has volumes of which each is measured only once those of both Pods are being measured.
type meeting struct {
	twoPods
	arrived chan struct{}
	all     sync.WaitGroup
}

func (m *meeting) Stats(ctx context.Context, _ types.UID) (map[string]volume.Stats, error) {
	m.all.Done()
	select {
	case <-m.arrived:
		return map[string]volume.Stats{"cache": {Used: 7}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (*meeting) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error) {
	return nil, errors.New("not supported")
}

// TestVolumesOfPodsAreMeasuredAtOnce: the volume of one Pod, whose file server does not respond, must not use up the time for all.
func TestVolumesOfPodsAreMeasuredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		for _, uid := range []types.UID{"bad", "good"} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), Namespace: "ns", UID: uid}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "cache"}}
			pods = append(pods, pod)
		}
		volumes := &meeting{arrived: make(chan struct{})}
		volumes.all.Add(len(pods))
		go func() {
			volumes.all.Wait()
			close(volumes.arrived)
		}()
		proc := t.TempDir()
		write(t, proc, "stat", "cpu  100 0 100 9000 9000 0 0 0 50 0\nbtime 1700000000\n")
		write(t, proc, "meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\n")
		p, err := stats.New(stats.Deps{Runtime: volumes, Pods: func() []*corev1.Pod { return pods }, Volumes: volumes},
			stats.Config{RootDir: proc, Proc: proc})
		require.NoError(t, err)
		s, err := p.Summary(t.Context(), false)
		require.NoError(t, err)
		require.Len(t, s.Pods, 2)
		for _, pod := range s.Pods {
			require.Len(t, pod.VolumeStats, 1, pod.PodRef.Name)
		}
	})
}
