package containermetrics_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	v1 "github.com/google/cadvisor/info/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/stats/containermetrics"
)

// cached is a machine that measures nothing anew, as cAdvisor's manager does between two rounds.
type cached struct {
	machine
	stats *v1.ContainerStats
}

func (c cached) ContainerInfo(name string, _ *v1.ContainerInfoRequest) (*v1.ContainerInfo, error) {
	return &v1.ContainerInfo{ContainerReference: v1.ContainerReference{Name: name}, Stats: []*v1.ContainerStats{c.stats}}, nil
}

// machine has every cgroup but gone. Each has used as many seconds of CPU time as its name has letters, and counts its network.
type machine struct {
	gone string
	err  error
}

func (m machine) MachineInfo() (*v1.MachineInfo, error) { return &v1.MachineInfo{NumCores: 3}, m.err }

func (m machine) ContainerInfo(name string, _ *v1.ContainerInfoRequest) (*v1.ContainerInfo, error) {
	if name == m.gone {
		return nil, errors.New("it has ended")
	}
	stats := &v1.ContainerStats{}
	stats.Cpu.Usage.Total = uint64(len(name)) * 1e9
	stats.Network.Interfaces = []v1.InterfaceStats{{Name: "eth0", RxBytes: 7}}
	return &v1.ContainerInfo{
		ContainerReference: v1.ContainerReference{Name: name}, Spec: v1.ContainerSpec{HasCpu: true, HasNetwork: true}, Stats: []*v1.ContainerStats{stats},
	}, nil
}

// runtime has a sandbox for each Pod, whose ID is sandbox- and the Pod's UID, and one container of the Pod u1.
type runtime struct{ err error }

func (r runtime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, uid := range []string{"u1", "u2"} {
		out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: "sandbox" + uid, Labels: map[string]string{
			"io.kubernetes.pod.name": "pod-" + uid, "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": uid,
		}})
	}
	return out, r.err
}

// PodSandboxStatus has an image for the first sandbox only.
func (r runtime) PodSandboxStatus(_ context.Context, in *runtimeapi.PodSandboxStatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	if in.PodSandboxId != "sandboxu1" || !in.Verbose {
		return &runtimeapi.PodSandboxStatusResponse{}, nil
	}
	return &runtimeapi.PodSandboxStatusResponse{Info: map[string]string{"info": `{"pid":7,"image":"pause:3"}`}}, nil
}

func (r runtime) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "c1", Image: &runtimeapi.ImageSpec{Image: "sha256:1"},
		Labels: map[string]string{
			"io.kubernetes.pod.name": "pod-u1", "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "u1", "io.kubernetes.container.name": "main",
		}}}}, nil
}

func (r runtime) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest, ...grpc.CallOption,
) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{Stats: []*runtimeapi.ContainerStats{
		{Attributes: &runtimeapi.ContainerAttributes{Id: "c1"}, WritableLayer: &runtimeapi.FilesystemUsage{}},
	}}, nil
}

// fixture is a node with the Pods u1, and u2 in the node's network, whose cgroups are directories.
type fixture struct {
	deps containermetrics.Deps
	pods string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	root := t.TempDir()
	groups, err := cm.New(cm.Deps{}, cm.Config{Hierarchies: []cm.Hierarchy{{Dir: root, Controllers: []string{"cpu", "memory"}, Unified: true}}})
	require.NoError(t, err)
	pods := []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "pod-u1", Namespace: "ns", UID: "u1"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app:1"}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "pod-u2", Namespace: "ns", UID: "u2"}, Spec: corev1.PodSpec{HostNetwork: true}},
	}
	f := &fixture{pods: filepath.Join(root, "kubepods")}
	for _, dir := range []string{
		"besteffort/podu1/sandboxu1", "besteffort/podu1/cri-containerd-c1.scope/inside", "besteffort/podu2/sandboxu2", "burstable",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(f.pods, dir), 0o755))
	}
	f.deps = containermetrics.Deps{
		Machine: machine{}, Runtime: runtime{}, Cgroups: groups, Pods: func() []*corev1.Pod { return pods },
		Layout: func() cm.NodeConfig {
			return cm.NodeConfig{KubeletCgroupsName: "/system.slice/kubelet.service", RuntimeCgroupsName: "/system.slice/containerd.service"}
		},
		Version: func() (containermetrics.Version, error) {
			return containermetrics.Version{Kernel: "6.1", OS: "Debian"}, nil
		},
	}
	return f
}

// gather returns the values of a metric by the values of some of its labels.
func (f *fixture) gather(t *testing.T, name string, labels ...string) map[string]float64 {
	t.Helper()
	exporter, err := containermetrics.New(f.deps)
	require.NoError(t, err)
	families, err := prometheus.Gatherer(exporter.Gatherer(t.Context())).Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.Metric {
			values := map[string]string{}
			for _, l := range m.Label {
				values[l.GetName()] = l.GetValue()
			}
			key := ""
			for i, label := range labels {
				if i > 0 {
					key += " "
				}
				key += values[label]
			}
			require.NotContains(t, out, key)
			out[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func TestCgroupsAreLabelledWithTheirPodsAndContainers(t *testing.T) {
	f := newFixture(t)
	const pods = "/kubepods/besteffort/"
	want := map[string]float64{}
	for _, line := range []string{
		"/     ", "/system.slice/kubelet.service     ", "/system.slice/containerd.service     ", "/kubepods     ", "/kubepods/besteffort     ",
		"/kubepods/burstable     ",
		pods + "podu1   ns pod-u1 ", pods + "podu1/sandboxu1 sandboxu1 pause:3 ns pod-u1 ",
		pods + "podu1/cri-containerd-c1.scope c1 app:1 ns pod-u1 main",
		pods + "podu2   ns pod-u2 ", pods + "podu2/sandboxu2 sandboxu2  ns pod-u2 ",
	} {
		var id string
		_, err := fmt.Sscan(line, &id)
		require.NoError(t, err)
		want[line] = float64(len(id))
	}
	require.Equal(t, want, f.gather(t, "container_cpu_usage_seconds_total", "id", "name", "image", "namespace", "pod", "container"),
		"a cgroup inside a container is its own affair")
	require.Equal(t, map[string]float64{"6.1 Debian": 1}, f.gather(t, "cadvisor_version_info", "kernelVersion", "osVersion"))
	require.Equal(t, map[string]float64{"": 3}, f.gather(t, "machine_cpu_cores"))
	require.Equal(t, map[string]float64{"": 0}, f.gather(t, "container_scrape_error"))
}

func TestNetworkIsCountedOnce(t *testing.T) {
	f := newFixture(t)
	require.Equal(t, map[string]float64{"/": 7, "/kubepods/besteffort/podu1/sandboxu1": 7},
		f.gather(t, "container_network_receive_bytes_total", "id"))
}

func TestLayerThatIsNotMeasuredIsOmitted(t *testing.T) {
	f := newFixture(t)
	for key := range f.gather(t, "container_fs_usage_bytes", "id", "device") {
		require.Regexp(t, "^/ ", key)
	}
}

func TestGivenMeasurementsStayAsTheyAre(t *testing.T) {
	f := newFixture(t)
	measured := func() *v1.ContainerStats {
		return &v1.ContainerStats{
			Network: v1.NetworkStats{Interfaces: []v1.InterfaceStats{{Name: "eth0", RxBytes: 7}}},
			DiskIo:  v1.DiskIoStats{IoServiced: []v1.PerDiskStats{{Major: 4095, Stats: map[string]uint64{"Read": 3}}}},
		}
	}
	machine := cached{stats: measured()}
	f.deps.Machine = machine
	require.Equal(t, float64(3), f.gather(t, "container_fs_reads_total", "id", "device")["/kubepods 4095:0"], "a device without a name")
	require.Equal(t, measured(), machine.stats)
}

func TestEndedCgroupsAreOmitted(t *testing.T) {
	f := newFixture(t)
	f.deps.Machine = machine{gone: "/kubepods/besteffort/podu1"}
	left := f.gather(t, "container_cpu_usage_seconds_total", "id")
	require.NotContains(t, left, "/kubepods/besteffort/podu1")
	require.Contains(t, left, "/kubepods/besteffort/podu1/sandboxu1")
	require.NoError(t, os.RemoveAll(f.pods))
	require.Len(t, f.gather(t, "container_cpu_usage_seconds_total", "id"), 3, "before the first Pod there is no cgroup for Pods")
}

// TestProgramsWithoutConfiguredCgroups finds the cgroups of the node's programs by their processes.
func TestProgramsWithoutConfiguredCgroups(t *testing.T) {
	f := newFixture(t)
	f.deps.Layout = func() cm.NodeConfig { return cm.NodeConfig{} }
	f.deps.RuntimePID = os.Getpid
	groups, err := cm.New(cm.Deps{}, cm.Config{})
	require.NoError(t, err)
	dirs, _, err := groups.ProcessDirs(filepath.Join("/proc", strconv.Itoa(os.Getpid()), "cgroup"))
	if err != nil || dirs.Group == "" {
		t.Skipf("the test's own cgroup is not visible: %v", err)
	}
	f.deps.Cgroups = groups
	require.Contains(t, f.gather(t, "container_cpu_usage_seconds_total", "id"), dirs.Group)
}

// TestPressureIsServedWhereTheKernelMeasuresIt: a machine without it is not one on which nothing ever waits.
func TestPressureIsServedWhereTheKernelMeasuresIt(t *testing.T) {
	f := newFixture(t)
	for _, resource := range []string{"cpu", "memory", "io"} {
		require.Empty(t, f.gather(t, "container_pressure_"+resource+"_waiting_seconds_total", "id"))
	}
	require.NoError(t, os.WriteFile(filepath.Join(f.pods, "../cpu.pressure"), []byte("some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"), 0o600))
	for _, resource := range []string{"cpu", "memory", "io"} {
		require.Contains(t, f.gather(t, "container_pressure_"+resource+"_waiting_seconds_total", "id"), "/kubepods")
	}
}

func TestErrorsAreMetrics(t *testing.T) {
	f := newFixture(t)
	f.deps.Runtime = runtime{err: errors.New("away")}
	require.Equal(t, map[string]float64{"": 1}, f.gather(t, "container_scrape_error"))
	require.Empty(t, f.gather(t, "container_cpu_usage_seconds_total"))
	f.deps.Machine = machine{err: errors.New("no sysfs")}
	require.Equal(t, map[string]float64{"": 1}, f.gather(t, "machine_scrape_error"))
}

func TestRequiredDeps(t *testing.T) {
	_, err := containermetrics.New(containermetrics.Deps{})
	require.ErrorContains(t, err, "Deps.Machine")
}
