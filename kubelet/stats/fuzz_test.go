package stats_test

import (
	"context"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/stats"
)

// FuzzFiles reads arbitrary files of procfs and of a cgroup: clients can read the summary, and no part of an amount is more than the whole.
func FuzzFiles(f *testing.F) {
	f.Add("cpu  100 0 100 9000 9000 0 0 0 50 0\nbtime 1700000000\n", "MemTotal: 1000 kB\nMemFree: 400 kB\nSwapTotal: 9 kB\nSwapFree: 5 kB\n",
		"some avg10=1.50 avg60=0.00 avg300=0.25 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
		" eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n", "eth0 00000000 0102A8C0 0003 0 0 0 00000000 0 0 0\n", "2000\n")
	f.Add("cpu\nbtime 18446744073709551615\n", "MemTotal: 18446744073709551615 kB\nMemFree: 1 kB\nInactive(file): 9 kB\n",
		"some avg10=NaN avg60=+Inf avg300=-1 total=1e300\n", "lo: 1\n", "", "max\n")
	f.Fuzz(func(t *testing.T, stat, memory, pressure, devices, routes, number string) {
		if len(stat)+len(memory)+len(pressure)+len(devices)+len(routes)+len(number) > 1<<16 {
			return
		}
		m := newFixture(t, cm.Hierarchy{Dir: "cgroup", Controllers: []string{"cpu", "memory", "io"}, Unified: true})
		m.layout.SystemCgroupsName = "/system.slice"
		files := map[string]string{
			"proc/stat": stat, "proc/meminfo": memory, "proc/vmstat": memory, "proc/net/dev": devices, "proc/net/route": routes,
			"proc/loadavg": stat, "proc/sys/kernel/pid_max": number, "proc/self/stat": stat, "proc/self/status": memory, "proc/self/cgroup": stat,
		}
		for _, name := range []string{"cpu", "memory", "io"} {
			files["proc/pressure/"+name], files["cgroup/system.slice/"+name+".pressure"] = pressure, pressure
		}
		for _, name := range []string{"memory.current", "memory.max", "memory.swap.current", "memory.swap.max"} {
			files["cgroup/system.slice/"+name] = number
		}
		files["cgroup/system.slice/cpu.stat"], files["cgroup/system.slice/memory.stat"] = stat, memory
		m.write(files)
		p := m.provider()
		for range 2 {
			summary, err := p.Summary(t.Context(), false)
			require.NoError(t, err)
			checkReadable(t, summary)
			total := *summary.Node.Memory.AvailableBytes + *summary.Node.Memory.WorkingSetBytes
			require.LessOrEqual(t, *summary.Node.Memory.UsageBytes, total)
			for _, one := range summary.Node.SystemContainers {
				if one.Memory != nil {
					require.LessOrEqual(t, *one.Memory.WorkingSetBytes, *one.Memory.UsageBytes)
				}
			}
			m.clock.Step(time.Minute)
		}
		_, err := p.Resources(t.Context()).Gather()
		require.NoError(t, err)
	})
}

// checkReadable checks that a client reads the summary as it was written.
func checkReadable(t *testing.T, summary *statsapi.Summary) {
	t.Helper()
	data, err := json.Marshal(summary)
	require.NoError(t, err)
	again := &statsapi.Summary{}
	require.NoError(t, json.Unmarshal(data, again))
	for _, psi := range []*statsapi.PSIStats{summary.Node.CPU.PSI, summary.Node.Memory.PSI} {
		if psi == nil {
			continue
		}
		for _, share := range []float64{psi.Some.Avg10, psi.Some.Avg60, psi.Some.Avg300, psi.Full.Avg10} {
			require.False(t, math.IsNaN(share) || share < 0, "share %v", share)
		}
	}
}

// rawRuntime is a runtime whose responses have any content.
type rawRuntime struct {
	stats.Runtime
	response []byte
}

func (r *rawRuntime) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest, ...grpc.CallOption) (
	*runtimeapi.ListPodSandboxStatsResponse, error,
) {
	out := &runtimeapi.ListPodSandboxStatsResponse{}
	return out, proto.Unmarshal(r.response, out)
}

func (r *rawRuntime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error) {
	out := &runtimeapi.ImageFsInfoResponse{}
	return out, proto.Unmarshal(r.response, out)
}

func (r *rawRuntime) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest, ...grpc.CallOption) (
	*runtimeapi.ListMetricDescriptorsResponse, error,
) {
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: []*runtimeapi.MetricDescriptor{
		{Name: "a_total", Help: "a", LabelKeys: []string{"pod"}}, {Name: "b c", LabelKeys: []string{"pod", "pod"}},
	}}, nil
}

func (r *rawRuntime) ListPodSandboxMetrics(context.Context, *runtimeapi.ListPodSandboxMetricsRequest, ...grpc.CallOption) (
	*runtimeapi.ListPodSandboxMetricsResponse, error,
) {
	out := &runtimeapi.ListPodSandboxMetricsResponse{}
	return out, proto.Unmarshal(r.response, out)
}

// FuzzRuntime has the container runtime respond with arbitrary bytes: clients can read the summary, and what is wrong with one Pod's metrics
// does not concern the others.
func FuzzRuntime(f *testing.F) {
	add := func(message proto.Message) {
		data, err := proto.Marshal(message)
		require.NoError(f, err)
		f.Add(data)
	}
	meta := &runtimeapi.PodSandboxAttributes{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}}
	cpu := &runtimeapi.CpuUsage{Timestamp: 1 << 62, UsageCoreNanoSeconds: number(9), Psi: &runtimeapi.PsiStats{Some: &runtimeapi.PsiData{Avg10: math.NaN()}}}
	add(&runtimeapi.ListPodSandboxStatsResponse{Stats: []*runtimeapi.PodSandboxStats{
		{Attributes: meta, Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu: cpu, Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: number(3)}, Io: &runtimeapi.IoUsage{},
			Containers: []*runtimeapi.ContainerStats{{Cpu: cpu, Swap: &runtimeapi.SwapUsage{}, WritableLayer: &runtimeapi.FilesystemUsage{}}, {}},
			Network:    &runtimeapi.NetworkUsage{Interfaces: []*runtimeapi.NetworkInterfaceUsage{{Name: "eth0"}, {}}},
		}},
		{Attributes: meta},
	}})
	add(&runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: []*runtimeapi.PodSandboxMetrics{{Metrics: []*runtimeapi.Metric{
		{Name: "a_total", LabelValues: []string{"p"}, Value: number(1), MetricType: runtimeapi.MetricType_COUNTER},
		{Name: "a_total", LabelValues: []string{"q"}, MetricType: runtimeapi.MetricType_GAUGE}, {Name: "b c", LabelValues: []string{"p", "q"}},
	}}}})
	f.Fuzz(func(t *testing.T, response []byte) {
		m := newFixture(t, cm.Hierarchy{Dir: "cgroup", Controllers: []string{"cpu", "memory"}, Unified: true})
		m.runtime = &rawRuntime{response: response}
		m.pods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}}
		p := m.provider()
		for _, short := range []bool{true, false} {
			summary, err := p.Summary(t.Context(), short)
			if err != nil {
				continue
			}
			checkReadable(t, summary)
			families, _ := p.Resources(t.Context()).Gather() // an error names a series that the runtime has twice
			require.NotEmpty(t, families)
		}
		_, _ = p.Cadvisor(t.Context()).Gather()
		_, _ = p.Usage(t.Context(), true)
	})
}
