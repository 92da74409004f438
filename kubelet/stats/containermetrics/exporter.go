package containermetrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/cadvisor/container"
	v1 "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
	"github.com/google/cadvisor/metrics"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/cm"
	kubecontainer "github.com/berth-dev/berth/kubelet/container"
)

// scrapeTimeout bounds one scrape.
const scrapeTimeout = 10 * time.Second

// Machine measures the machine and its cgroups. cadvisor.Interface has it.
type Machine interface {
	MachineInfo() (*v1.MachineInfo, error)
	ContainerInfo(name string, req *v1.ContainerInfoRequest) (*v1.ContainerInfo, error)
}

// Runtime is the part of the CRI that an Exporter uses.
type Runtime interface {
	ListPodSandbox(ctx context.Context, in *runtimeapi.ListPodSandboxRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListPodSandboxResponse, error)
	PodSandboxStatus(ctx context.Context, in *runtimeapi.PodSandboxStatusRequest, opts ...grpc.CallOption,
	) (*runtimeapi.PodSandboxStatusResponse, error)
	ListContainers(ctx context.Context, in *runtimeapi.ListContainersRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListContainersResponse, error)
	ListContainerStats(ctx context.Context, in *runtimeapi.ListContainerStatsRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListContainerStatsResponse, error)
}

// Cgroups finds cgroups. *cm.Manager implements it.
type Cgroups interface {
	PodsDirs() (cm.Dirs, error)
	CgroupDirs(name string) (cm.Dirs, error)
	CgroupParent(pod *corev1.Pod) string
	ProcessDirs(file string) (dirs cm.Dirs, alone bool, err error)
}

// Version names the software of the machine.
type Version struct{ Kernel, OS string }

// Deps are what an Exporter works with. All are required but Logger, Clock and RuntimePID.
type Deps struct {
	Machine Machine
	Runtime Runtime
	Cgroups Cgroups
	// Pods returns the node's Pods.
	Pods func() []*corev1.Pod
	// Layout returns the configured cgroup names of the node's own programs.
	Layout func() cm.NodeConfig
	// RuntimePID returns the container runtime's process ID, 0 if unknown.
	RuntimePID func() int
	Version    func() (Version, error)
	Logger     *slog.Logger
	Clock      clock.Clock
}

// Exporter serves the metrics. It is safe for concurrent use.
type Exporter struct {
	deps   Deps
	images sandboxImages
}

// New returns an Exporter.
func New(deps Deps) (*Exporter, error) {
	if deps.Machine == nil || deps.Runtime == nil || deps.Cgroups == nil || deps.Pods == nil || deps.Layout == nil || deps.Version == nil {
		return nil, errors.New("containermetrics: Deps.Machine, Runtime, Cgroups, Pods, Layout and Version are required")
	}
	if deps.RuntimePID == nil {
		deps.RuntimePID = func() int { return 0 }
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Exporter{deps: deps}, nil
}

// included returns the kinds of metrics that are served. What the machine does not count, which cAdvisor reports as 0, is not among them:
// load averages and the states of tasks, and pressure where the kernel has none.
func (e *Exporter) included() container.MetricSet {
	kinds := container.MetricSet{
		container.CpuUsageMetrics: {}, container.MemoryUsageMetrics: {}, container.DiskIOMetrics: {}, container.DiskUsageMetrics: {},
		container.NetworkUsageMetrics: {}, container.ProcessMetrics: {}, container.OOMMetrics: {},
	}
	if e.measuresPressure() {
		kinds[container.PressureMetrics] = struct{}{}
	}
	return kinds
}

// measuresPressure reports whether the kernel says how long the processes of a cgroup are stalled. It does with version 2, unless it was
// built or started without that.
func (e *Exporter) measuresPressure() bool {
	dirs, err := e.deps.Cgroups.CgroupDirs(machineCgroup)
	if err != nil || !dirs.Unified {
		return false
	}
	_, err = os.ReadFile(filepath.Join(dirs.CPU, "cpu.pressure"))
	return err == nil
}

// Gatherer returns the metrics of one scrape, which are read when they are gathered, within ctx. If they cannot be read,
// container_scrape_error and machine_scrape_error are 1.
func (e *Exporter) Gatherer(ctx context.Context) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
		defer cancel()
		one, kinds := &scrape{exporter: e, ctx: ctx}, e.included()
		registry := prometheus.NewRegistry()
		registry.MustRegister(
			metrics.NewPrometheusCollector(one, labels, kinds, e.deps.Clock, v2.RequestOptions{}),
			metrics.NewPrometheusMachineCollector(one, kinds))
		return registry.Gather()
	})
}

// scrape is one gathering of metrics, for cAdvisor's collectors.
type scrape struct {
	exporter *Exporter
	ctx      context.Context
}

// GetRequestedContainersInfo returns the usage of all cgroups that are reported, by name.
func (s *scrape) GetRequestedContainersInfo(string, v2.RequestOptions) (map[string]*v1.ContainerInfo, error) {
	all, err := s.exporter.cgroups(s.ctx)
	if err != nil {
		s.exporter.deps.Logger.Warn("failed to read metrics of containers", "error", err)
	}
	return all, err
}

// GetMachineInfo returns the machine's hardware.
func (s *scrape) GetMachineInfo() (*v1.MachineInfo, error) {
	return s.exporter.deps.Machine.MachineInfo()
}

// GetVersionInfo returns the machine's software.
func (s *scrape) GetVersionInfo() (*v1.VersionInfo, error) {
	version, err := s.exporter.deps.Version()
	if err != nil {
		return nil, fmt.Errorf("read version of operating system: %w", err)
	}
	return &v1.VersionInfo{KernelVersion: version.Kernel, ContainerOsVersion: version.OS}, nil
}

// labels returns the labels of a cgroup's metrics. Each has all of them, as Prometheus asks of the metrics of one family.
func labels(info *v1.ContainerInfo) map[string]string {
	name := ""
	if len(info.Aliases) > 0 {
		name = info.Aliases[0]
	}
	return map[string]string{
		metrics.LabelID: info.Name, metrics.LabelName: name, metrics.LabelImage: info.Spec.Image,
		"pod":       info.Spec.Labels[kubecontainer.PodNameLabel],
		"namespace": info.Spec.Labels[kubecontainer.PodNamespaceLabel],
		"container": info.Spec.Labels[kubecontainer.ContainerNameLabel],
	}
}
