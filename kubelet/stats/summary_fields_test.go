package stats_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/stats"
	"github.com/berth-dev/berth/volume"
)

// completeRuntime is a runtime that reports every statistic.
type completeRuntime struct {
	runtime
	dir string
}

func number(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

func (f *completeRuntime) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest, ...grpc.CallOption) (
	*runtimeapi.ListPodSandboxStatsResponse, error,
) {
	waits := &runtimeapi.PsiStats{Some: &runtimeapi.PsiData{Total: 9, Avg10: 1.5}, Full: &runtimeapi.PsiData{Total: 4, Avg300: 0.5}}
	cpu := &runtimeapi.CpuUsage{Timestamp: 1, UsageCoreNanoSeconds: number(3e9), UsageNanoCores: number(5), Psi: waits}
	memory := &runtimeapi.MemoryUsage{Timestamp: 1, WorkingSetBytes: number(77), UsageBytes: number(99), RssBytes: number(50),
		AvailableBytes: number(10), PageFaults: number(7), MajorPageFaults: number(2), Psi: waits}
	container := func(name string, swap uint64) *runtimeapi.ContainerStats {
		return &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Metadata: &runtimeapi.ContainerMetadata{Name: name}}, Cpu: cpu, Memory: memory,
			Swap: &runtimeapi.SwapUsage{Timestamp: 1, SwapUsageBytes: number(swap), SwapAvailableBytes: number(1000)},
			Io:   &runtimeapi.IoUsage{Timestamp: 1, Psi: waits},
			WritableLayer: &runtimeapi.FilesystemUsage{Timestamp: 1, UsedBytes: number(4096), InodesUsed: number(3),
				FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: f.dir}},
		}
	}
	link := &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: number(1), RxErrors: number(2), TxBytes: number(3), TxErrors: number(4)}
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu: cpu, Memory: memory, Io: &runtimeapi.IoUsage{Timestamp: 1, Psi: waits},
			Network:    &runtimeapi.NetworkUsage{Timestamp: 1, DefaultInterface: link, Interfaces: []*runtimeapi.NetworkInterfaceUsage{link}},
			Process:    &runtimeapi.ProcessUsage{ProcessCount: number(6)},
			Containers: []*runtimeapi.ContainerStats{container("c", 20), container("d", 30)},
		},
	}}}, nil
}

func (f *completeRuntime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (
	*runtimeapi.ImageFsInfoResponse, error,
) {
	usage := func(n uint64) *runtimeapi.FilesystemUsage {
		return &runtimeapi.FilesystemUsage{Timestamp: 1, UsedBytes: number(n), InodesUsed: number(1),
			FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: f.dir}}
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems: []*runtimeapi.FilesystemUsage{usage(11)}, ContainerFilesystems: []*runtimeapi.FilesystemUsage{usage(12)},
	}, nil
}

type twoVolumes struct{ volumes }

func (twoVolumes) Stats(context.Context, types.UID) (map[string]volume.Stats, error) {
	return map[string]volume.Stats{
		"scratch": {Capacity: 100, Available: 50, Used: 40, Inodes: 9, InodesFree: 5, InodesUsed: 4}, "data": {Capacity: 100, Used: 60},
		"memory": {Used: 7},
	}, nil
}

// TestEachFieldIsReported requests every field of the API from a machine and a runtime that know all of them.
func TestEachFieldIsReported(t *testing.T) {
	proc := t.TempDir()
	for name, content := range map[string]string{
		"stat":               "cpu  100 0 100 9000 9000 0 0 0 50 0\nbtime 1700000000\n",
		"meminfo":            "MemTotal: 1000 kB\nMemFree: 400 kB\nAnonPages: 9 kB\nSwapTotal: 8 kB\nSwapFree: 5 kB\n",
		"vmstat":             "pgfault 12\npgmajfault 3\n",
		"loadavg":            "0.1 0.2 0.3 2/345 999\n",
		"sys/kernel/pid_max": "4194304\n", "sys/kernel/threads-max": "47376\n",
		"pressure/cpu":    "some avg10=1.50 avg60=0.75 avg300=0.25 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2\n",
		"pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
		"pressure/io":     "some avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
		"net/dev": "Inter-|   Receive |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs\n" +
			"    lo: 1 1 1 1 1 1 1 1 1 1 1 1\n  ens3: 1000 10 2 0 0 0 0 0 2000 20 4 0 0 0 0 0\n cni0:5 0 0 0 0 0 0 0 6 0 0 0 0 0 0 0\n" +
			"veth1a2b3c4d: 9 9 9 0 0 0 0 0 9 9 9 0 0 0 0 0\ndocker0: 9 9 9 0 0 0 0 0 9 9 9 0 0 0 0 0\n",
		"net/route":    "Iface Destination Gateway Flags RefCnt Use Metric Mask\ncni0 0000550A 0 1 0 0 0 00FFFFFF\nens3 00000000 1 3 0 0 0 00000000\n",
		"logs/c/0.log": "one line\n", "logs/c/0.log.gz": "older",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(proc, name)), 0o700))
		write(t, proc, name, content)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	pod.Status.StartTime = &metav1.Time{Time: time.Unix(1700000000, 0)}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}}},
	}
	p, err := stats.New(stats.Deps{
		Runtime: &completeRuntime{dir: proc}, Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} }, Volumes: twoVolumes{},
		LogDir: func(*corev1.Pod) string { return filepath.Join(proc, "logs") },
		Clock:  clocktesting.NewFakePassiveClock(time.Unix(1800000000, 0)),
	}, stats.Config{NodeName: "n", RootDir: proc, Proc: proc})
	require.NoError(t, err)
	s, err := p.Summary(t.Context(), false)
	require.NoError(t, err)

	n := s.Node
	require.Equal(t, &statsapi.PSIStats{Some: statsapi.PSIData{Total: 7000, Avg10: 1.5, Avg60: 0.75, Avg300: 0.25},
		Full: statsapi.PSIData{Total: 2000}}, n.CPU.PSI)
	require.EqualValues(t, 1000, n.Memory.PSI.Some.Total)
	require.EqualValues(t, 3000, n.IO.PSI.Some.Total)
	require.EqualValues(t, 12, *n.Memory.PageFaults)
	require.EqualValues(t, 3, *n.Memory.MajorPageFaults)
	require.EqualValues(t, 345, *n.Rlimit.NumOfRunningProcesses)
	require.EqualValues(t, 47376, *n.Rlimit.MaxPID, "the smaller limit")
	require.EqualValues(t, 3<<10, *n.Swap.SwapUsageBytes)
	require.Equal(t, "ens3", n.Network.Name)
	require.EqualValues(t, 1000, *n.Network.RxBytes)
	require.EqualValues(t, 4, *n.Network.TxErrors)
	require.Len(t, n.Network.Interfaces, 2, "those of containers carry what others have carried")
	require.EqualValues(t, 6, *n.Network.Interfaces[1].TxBytes)
	require.EqualValues(t, 11, *n.Runtime.ImageFs.UsedBytes)
	require.EqualValues(t, 12, *n.Runtime.ContainerFs.UsedBytes)
	require.Positive(t, *n.Runtime.ImageFs.CapacityBytes)
	require.Positive(t, *n.Fs.Inodes)

	one := s.Pods[0]
	require.EqualValues(t, 6, *one.ProcessStats.ProcessCount)
	require.Equal(t, 1.5, one.CPU.PSI.Some.Avg10)
	require.Equal(t, 0.5, one.Memory.PSI.Full.Avg300)
	require.EqualValues(t, 9, one.IO.PSI.Some.Total)
	require.EqualValues(t, 50, *one.Swap.SwapUsageBytes, "of both containers")
	require.Len(t, one.Network.Interfaces, 1)
	require.Len(t, one.VolumeStats, 3)
	c := one.Containers[0]
	require.EqualValues(t, 4, c.IO.PSI.Full.Total)
	require.EqualValues(t, 4096, *c.Rootfs.UsedBytes)
	require.Positive(t, *c.Rootfs.CapacityBytes)
	require.EqualValues(t, 3, *c.Logs.InodesUsed, "two files and their directory")
	require.Positive(t, *c.Logs.UsedBytes)
	require.Nil(t, one.Containers[1].Logs, "it has not written any")
	require.EqualValues(t, 2*4096+*c.Logs.UsedBytes+40, *one.EphemeralStorage.UsedBytes,
		"neither claims nor memory are the node's disk")
	require.EqualValues(t, 3+3+3+4, *one.EphemeralStorage.InodesUsed)
	require.Positive(t, *one.EphemeralStorage.AvailableBytes)

	s, err = p.Summary(t.Context(), true)
	require.NoError(t, err)
	data, err := json.Marshal(s)
	require.NoError(t, err)
	for _, other := range []string{"fs\"", "network", "volume", "rlimit", "runtime", "ephemeral", "process", "\"io\""} {
		require.NotContains(t, string(data), other, "nothing but cpu and memory")
	}
}
