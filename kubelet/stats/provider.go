package stats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/diskusage"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/volume"
)

// Runtime is the part of the CRI that a Provider uses.
type Runtime interface {
	ListPodSandboxStats(ctx context.Context, in *runtimeapi.ListPodSandboxStatsRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListPodSandboxStatsResponse, error)
	ListContainerStats(ctx context.Context, in *runtimeapi.ListContainerStatsRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListContainerStatsResponse, error)
	ListPodSandboxMetrics(ctx context.Context, in *runtimeapi.ListPodSandboxMetricsRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListPodSandboxMetricsResponse, error)
	ListMetricDescriptors(ctx context.Context, in *runtimeapi.ListMetricDescriptorsRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListMetricDescriptorsResponse, error)
	ImageFsInfo(ctx context.Context, in *runtimeapi.ImageFsInfoRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ImageFsInfoResponse, error)
}

// Volumes measures a Pod's volumes, by name.
type Volumes interface {
	Stats(ctx context.Context, uid types.UID) (map[string]volume.Stats, error)
	// LocalUsage measures what those on the node's own disk occupy.
	LocalUsage(ctx context.Context, uid types.UID) (map[string]diskusage.Usage, error)
}

// Cgroups finds the directories of cgroups. *cm.Manager implements it.
type Cgroups interface {
	PodsDirs() (cm.Dirs, error)
	PodDirs(pod *corev1.Pod) (cm.Dirs, error)
	CgroupDirs(name string) (cm.Dirs, error)
	ProcessDirs(file string) (dirs cm.Dirs, alone bool, err error)
}

// Containers has the metrics of the node's containers. *containermetrics.Exporter implements it.
type Containers interface {
	// Gatherer returns the metrics of one scrape, which are read when they are gathered, within ctx.
	Gatherer(ctx context.Context) prometheus.Gatherer
}

// Config are the values of a Provider.
type Config struct {
	NodeName string
	// RootDir is a directory on the file system that is reported for the node.
	RootDir string
	// Proc is the mount point of procfs; "/proc" if empty.
	Proc string
}

// Deps are what a Provider works with. Runtime and Pods are required.
type Deps struct {
	Runtime Runtime
	// Pods returns the node's Pods with their current status.
	Pods    func() []*corev1.Pod
	Volumes Volumes
	// Cgroups finds cgroups. Without it no system containers are reported.
	Cgroups Cgroups
	// Layout returns the configured cgroup names of the node's own programs.
	Layout func() cm.NodeConfig
	// Containers, if set, has the metrics of /metrics/cadvisor; without it they are those of the runtime.
	Containers Containers
	// Machine, if set, measures the node in place of the kernel's files.
	Machine Machine
	// RuntimePID returns the container runtime's process id, 0 if unknown.
	RuntimePID func() int
	// LogDir, if set, returns the directory of a Pod's logs, which has one subdirectory per container.
	LogDir func(pod *corev1.Pod) string
	Logger *slog.Logger
	Clock  clock.PassiveClock
}

// Provider reports usage. It is safe for concurrent use.
type Provider struct {
	config Config
	deps   Deps

	nodeRates cpuRates // of the node, whose key is empty, and of system containers
	podRates  cpuRates // of Pods by UID, and of containers by ID
}

// New returns a Provider.
func New(deps Deps, config Config) (*Provider, error) {
	switch {
	case deps.Runtime == nil:
		return nil, errors.New("stats: Deps.Runtime is required")
	case deps.Pods == nil:
		return nil, errors.New("stats: Deps.Pods is required")
	}
	if config.Proc == "" {
		config.Proc = "/proc"
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Provider{config: config, deps: deps}, nil
}

const (
	// volumesTimeout bounds the measurement of all volumes for one summary. Volumes that are not measured by then are omitted.
	volumesTimeout = 5 * time.Second
	// podsAtOnce is of how many Pods the volumes are measured at once, so that one whose file server does not respond delays no others.
	podsAtOnce = 16
)

// Summary returns the content of /stats/summary, with cpuAndMemory restricted to CPU and memory.
func (p *Provider) Summary(ctx context.Context, cpuAndMemory bool) (*statsapi.Summary, error) {
	node, err := p.nodeStats(cpuAndMemory)
	if err != nil {
		return nil, err
	}
	summary := &statsapi.Summary{Node: *node}
	group, gctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("stats.Summary", "", func() (err error) {
		summary.Pods, err = p.allPodStats(gctx, cpuAndMemory)
		return err
	}))
	if !cpuAndMemory {
		group.Go(contain.Func("stats.Summary", "", func() error {
			summary.Node.Runtime = p.runtimeStats(gctx)
			return nil
		}))
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return summary, nil
}

// allPodStats returns the usage of all running Pods, and of their containers that run. Who reads them takes a container without CPU time or
// memory for one that is not measured completely, as metrics-server does, which then leaves out the Pod.
func (p *Provider) allPodStats(ctx context.Context, cpuAndMemory bool) ([]statsapi.PodStats, error) {
	resp, err := p.deps.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list Pod statistics of container runtime: %w", err)
	}
	known := map[types.UID]*corev1.Pod{}
	for _, pod := range p.deps.Pods() {
		known[pod.UID] = pod
	}
	var volumes [][]statsapi.VolumeStats
	if !cpuAndMemory {
		volumes = p.allVolumeStats(ctx, resp.Stats, known)
	}
	out := make([]statsapi.PodStats, 0, len(resp.Stats))
	p.podRates.keepOnly(resp.Stats)
	for i, sandbox := range resp.Stats {
		meta := sandbox.GetAttributes().GetMetadata()
		pod := known[types.UID(meta.GetUid())]
		s := p.podStats(sandbox, pod, cpuAndMemory)
		if !cpuAndMemory {
			s.VolumeStats = volumes[i]
			s.EphemeralStorage = p.ephemeralStats(ctx, &s, pod)
		}
		s.Containers = slices.DeleteFunc(s.Containers, hasEnded(sandbox, pod))
		out = append(out, s)
	}
	return out, nil
}

// podStats converts one Pod's statistics. pod is nil for a Pod that only the runtime knows.
func (p *Provider) podStats(sandbox *runtimeapi.PodSandboxStats, pod *corev1.Pod, cpuAndMemory bool) statsapi.PodStats {
	meta, linux := sandbox.GetAttributes().GetMetadata(), sandbox.GetLinux()
	s := statsapi.PodStats{
		PodRef: statsapi.PodReference{Name: meta.GetName(), Namespace: meta.GetNamespace(), UID: meta.GetUid()},
		CPU:    p.podRates.cpuStats(meta.GetUid(), linux.GetCpu()), Memory: memoryStats(linux.GetMemory()),
	}
	if pod != nil && pod.Status.StartTime != nil {
		s.StartTime = *pod.Status.StartTime
	}
	var ids []string
	for _, c := range newest(linux.GetContainers()) {
		name := c.GetAttributes().GetMetadata().GetName()
		ids = append(ids, c.GetAttributes().GetId())
		one := statsapi.ContainerStats{
			Name: name, StartTime: startTime(pod, name), CPU: p.podRates.cpuStats(c.GetAttributes().GetId(), c.Cpu), Memory: memoryStats(c.Memory),
			Swap: swapStats(c.Swap),
		}
		if !cpuAndMemory {
			one.Rootfs, one.IO = p.rootfsStats(c.WritableLayer), ioStats(c.Io)
			one.Logs = p.logStats(context.Background(), pod, name)
		}
		s.Containers = append(s.Containers, one)
	}
	dirs := podDirs(p.deps.Cgroups, pod)
	addSwap(&s, ids, dirs, p.deps.Clock.Now())
	if !cpuAndMemory {
		s.IO = ioStats(linux.GetIo())
	}
	p.addPodPressure(&s, dirs, cpuAndMemory)
	if cpuAndMemory {
		return s
	}
	if n := linux.GetNetwork(); n != nil {
		s.Network = &statsapi.NetworkStats{Time: timestamp(n.Timestamp), InterfaceStats: interfaceStats(n.DefaultInterface)}
		for _, each := range n.Interfaces { // includes the default one
			s.Network.Interfaces = append(s.Network.Interfaces, interfaceStats(each))
		}
	}
	if linux.GetProcess() != nil {
		s.ProcessStats = &statsapi.ProcessStats{ProcessCount: optionalUint(linux.Process.ProcessCount)}
	}
	return s
}

// startTime returns the start time of the Pod's container from its status.
func startTime(pod *corev1.Pod, name string) metav1.Time {
	if pod == nil {
		return metav1.Time{}
	}
	if s := podutil.FindStatusOfAny(&pod.Status, name); s != nil && s.State.Running != nil {
		return s.State.Running.StartedAt
	}
	return metav1.Time{}
}

// allVolumeStats returns the usage of the volumes of all Pods, in the order of their sandboxes.
func (p *Provider) allVolumeStats(ctx context.Context, sandboxes []*runtimeapi.PodSandboxStats, known map[types.UID]*corev1.Pod,
) [][]statsapi.VolumeStats {
	ctx, cancel := context.WithTimeout(ctx, volumesTimeout)
	defer cancel()
	out := make([][]statsapi.VolumeStats, len(sandboxes))
	var group errgroup.Group
	group.SetLimit(podsAtOnce)
	for i, sandbox := range sandboxes {
		uid := sandbox.GetAttributes().GetMetadata().GetUid()
		group.Go(contain.Func("stats.volumes", uid, func() error {
			out[i] = p.volumeStats(ctx, known[types.UID(uid)])
			return nil
		}))
	}
	_ = group.Wait() // the functions above return nil
	return out
}

// volumeStats returns the usage of a Pod's volumes. What cannot be measured is omitted.
func (p *Provider) volumeStats(ctx context.Context, pod *corev1.Pod) []statsapi.VolumeStats {
	if p.deps.Volumes == nil || pod == nil {
		return nil
	}
	found, err := p.deps.Volumes.Stats(ctx, pod.UID)
	if err != nil {
		p.deps.Logger.Warn("failed to measure volumes of Pod", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
	now := metav1.NewTime(p.deps.Clock.Now())
	var out []statsapi.VolumeStats
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		s, ok := found[v.Name]
		if !ok {
			continue
		}
		one := statsapi.VolumeStats{Name: v.Name, FsStats: statsapi.FsStats{
			Time: now, CapacityBytes: nonNegative(s.Capacity), AvailableBytes: nonNegative(s.Available),
			UsedBytes: nonNegative(s.Used), Inodes: nonNegative(s.Inodes), InodesFree: nonNegative(s.InodesFree),
			InodesUsed: nonNegative(s.InodesUsed),
		}}
		switch {
		case v.PersistentVolumeClaim != nil:
			one.PVCRef = &statsapi.PVCReference{Name: v.PersistentVolumeClaim.ClaimName, Namespace: pod.Namespace}
		case v.Ephemeral != nil:
			one.PVCRef = &statsapi.PVCReference{Name: pod.Name + "-" + v.Name, Namespace: pod.Namespace}
		}
		out = append(out, one)
	}
	return out
}

// runtimeStats returns the runtime's file systems, nil if it does not report them.
func (p *Provider) runtimeStats(ctx context.Context) *statsapi.RuntimeStats {
	resp, err := p.deps.Runtime.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(resp.ImageFilesystems) == 0 {
		return nil
	}
	fs := func(u *runtimeapi.FilesystemUsage) *statsapi.FsStats {
		s, err := fileSystem(u.GetFsId().GetMountpoint(), p.deps.Clock.Now())
		if err != nil {
			s = &statsapi.FsStats{Time: timestamp(u.Timestamp)}
		}
		s.UsedBytes, s.InodesUsed = optionalUint(u.UsedBytes), optionalUint(u.InodesUsed)
		return s
	}
	out := &statsapi.RuntimeStats{ImageFs: fs(resp.ImageFilesystems[0])}
	out.ContainerFs = out.ImageFs
	if len(resp.ContainerFilesystems) > 0 {
		out.ContainerFs = fs(resp.ContainerFilesystems[0])
	}
	return out
}

func memoryStats(u *runtimeapi.MemoryUsage) *statsapi.MemoryStats {
	if u == nil {
		return nil
	}
	return &statsapi.MemoryStats{
		Time: timestamp(u.Timestamp), AvailableBytes: optionalUint(u.AvailableBytes), UsageBytes: optionalUint(u.UsageBytes),
		WorkingSetBytes: optionalUint(u.WorkingSetBytes), RSSBytes: optionalUint(u.RssBytes), PageFaults: optionalUint(u.PageFaults),
		MajorPageFaults: optionalUint(u.MajorPageFaults), PSI: psiStats(u.Psi),
	}
}

func swapStats(u *runtimeapi.SwapUsage) *statsapi.SwapStats {
	if u == nil {
		return nil
	}
	return &statsapi.SwapStats{
		Time: timestamp(u.Timestamp), SwapAvailableBytes: optionalUint(u.SwapAvailableBytes), SwapUsageBytes: optionalUint(u.SwapUsageBytes),
	}
}

// sumSwap adds a container's swap to that of its Pod. The available swap is that of any container.
func sumSwap(pod, container *statsapi.SwapStats) *statsapi.SwapStats {
	if pod == nil || container == nil {
		if container == nil {
			return pod
		}
		first := *container
		return &first
	}
	return &statsapi.SwapStats{
		Time: container.Time, SwapAvailableBytes: container.SwapAvailableBytes,
		SwapUsageBytes: sum(pod.SwapUsageBytes, container.SwapUsageBytes),
	}
}

func interfaceStats(u *runtimeapi.NetworkInterfaceUsage) statsapi.InterfaceStats {
	if u == nil {
		return statsapi.InterfaceStats{}
	}
	return statsapi.InterfaceStats{
		Name: u.Name, RxBytes: optionalUint(u.RxBytes), RxErrors: optionalUint(u.RxErrors), TxBytes: optionalUint(u.TxBytes),
		TxErrors: optionalUint(u.TxErrors),
	}
}

func optionalUint(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

func nonNegative(n int64) *uint64 {
	u := uint64(max(n, 0))
	return &u
}

func timestamp(nanoseconds int64) metav1.Time { return metav1.NewTime(time.Unix(0, nanoseconds)) }
