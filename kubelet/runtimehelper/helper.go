package runtimehelper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/envvars"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/logs"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/objects"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/resources"
	"github.com/berth-dev/berth/kubelet/securitycontext"
	"github.com/berth-dev/berth/kubelet/userns"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/subpath"
)

// Config holds the values of a Helper.
type Config struct {
	NodeName, RootDir, PodLogsDir string
	// HostsFile is the node's hosts file.
	HostsFile string
	// DNS is the configuration of the Pods' resolvers.
	DNS network.DNS
	// SwapBehavior says which Pods may use swap.
	SwapBehavior cm.SwapBehavior
	// SingleProcessOOMKill has the kernel kill one process of a container that is out of memory instead of all; nil is what
	// cm.DetectResourceOptions says.
	SingleProcessOOMKill *bool
	// NoCPUQuota does not enforce CPU limits; ExclusiveCPUQuota enforces them on CPUs that a container has for itself, too. CPUQuotaPeriod is
	// the period of their quotas; the default of cm if zero.
	NoCPUQuota, ExclusiveCPUQuota bool
	CPUQuotaPeriod                time.Duration
	// SeccompDefault gives containers that name no seccomp profile the runtime's.
	SeccompDefault bool
	// MemoryQoS reserves and throttles memory with cgroup v2; nil does neither.
	MemoryQoS *cm.MemoryQoSConfig
	// IDsPerPod is how many user IDs a Pod with a user namespace has; 65536 if zero.
	IDsPerPod int64
}

// Deps holds what a Helper needs; all are required.
type Deps struct {
	// Client reads RuntimeClasses.
	Client      kubernetes.Interface
	Machine     node.Machine
	Cgroups     *cm.Manager
	NodeCgroups *cm.NodeCgroups
	Volumes     *volumemanager.Manager
	Objects     *objects.Manager
	Services    *Services
	// HostIPs returns the node's addresses, the primary one first.
	HostIPs func() []string
	// Allocatable returns the resources that Pods may use: the values of limits that are not set.
	Allocatable func() corev1.ResourceList
	// Managers say which CPUs, memory and devices containers have for themselves.
	Managers *resources.Manager
	Recorder record.EventRecorder
	Logger   *slog.Logger
}

func (d *Deps) validate() error {
	for _, dep := range []struct {
		name    string
		missing bool
	}{
		{"Client", d.Client == nil}, {"Machine", d.Machine == nil}, {"Cgroups", d.Cgroups == nil},
		{"NodeCgroups", d.NodeCgroups == nil}, {"Volumes", d.Volumes == nil}, {"Objects", d.Objects == nil},
		{"Services", d.Services == nil}, {"HostIPs", d.HostIPs == nil}, {"Allocatable", d.Allocatable == nil},
		{"Managers", d.Managers == nil}, {"Recorder", d.Recorder == nil}, {"Logger", d.Logger == nil},
	} {
		if dep.missing {
			return errors.New("runtimehelper: Deps." + dep.name + " is required")
		}
	}
	return nil
}

// Helper builds the configurations of sandboxes and containers from what the other components know of a Pod, and creates
// on disk what they refer to. It has many methods because a worker needs all of it for one Pod, of one source. It is safe for concurrent use.
type Helper struct {
	config  Config
	deps    Deps
	users   *userns.Manager
	builder atomic.Pointer[kuberuntime.Builder]        // replaced when the runtime has reported its features
	runtime atomic.Pointer[runtimeapi.RuntimeFeatures] // nil while the runtime has not reported any
	// warnNoDNS limits the warning that there are no cluster DNS servers to one event.
	warnNoDNS sync.Once
}

var _ podworker.Builder = (*Helper)(nil)

// New returns a Helper.
func New(deps Deps, config Config) (*Helper, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	h := &Helper{config: config, deps: deps, users: userns.New(filepath.Join(config.RootDir, "pods"), config.IDsPerPod, deps.Logger)}
	h.rebuild(false)
	return h, nil
}

// DelegateIDs limits the ids of user namespaces to those that the machine's administrator has delegated to the kubelet. The node takes as many
// Pods.
func (h *Helper) DelegateIDs(ctx context.Context, pods int64) error {
	return h.users.Delegate(ctx, pods)
}

// UpdateRuntimeStatus takes over which features the runtime has.
func (h *Helper) UpdateRuntimeStatus(resp *runtimeapi.StatusResponse) {
	recursive := false
	for _, handler := range resp.RuntimeHandlers {
		if handler.Name == "" {
			recursive = handler.GetFeatures().GetRecursiveReadOnlyMounts()
		}
	}
	features := resp.GetFeatures()
	if features == nil {
		features = &runtimeapi.RuntimeFeatures{} // a runtime that is older than the field
	}
	h.runtime.Store(features)
	h.rebuild(recursive)
}

// GroupsPolicy returns an error if the runtime is known not to support the Pod's supplementalGroupsPolicy.
func (h *Helper) GroupsPolicy(pod *corev1.Pod) error {
	features, sc := h.runtime.Load(), pod.Spec.SecurityContext
	if features == nil || features.SupplementalGroupsPolicy || sc == nil || sc.SupplementalGroupsPolicy == nil ||
		*sc.SupplementalGroupsPolicy != corev1.SupplementalGroupsPolicyStrict {
		return nil
	}
	return fmt.Errorf("SupplementalGroupsPolicy=%s is not supported in this node: its container runtime is too old",
		corev1.SupplementalGroupsPolicyStrict)
}

// rebuild replaces the builder of CRI configurations.
func (h *Helper) rebuild(recursiveReadOnly bool) {
	options := cm.DetectResourceOptions()
	options.SwapBehavior, options.NoCPUQuota = h.config.SwapBehavior, h.config.NoCPUQuota
	options.QuotaPeriod = h.config.CPUQuotaPeriod.Microseconds()
	if single := h.config.SingleProcessOOMKill; single != nil {
		options.SingleProcessOOMKill = *single
	}
	info, err := h.deps.Machine.Info()
	if err != nil {
		h.deps.Logger.Warn("failed to read the machine's memory and swap", "error", err)
	}
	options.MemoryCapacity, options.SwapCapacity = info.Memory, info.Swap
	options.MemoryQoS = h.config.MemoryQoS
	options.AllocatableMemory = func() int64 {
		allocatable := h.deps.Allocatable()
		return allocatable.Memory().Value()
	}
	h.builder.Store(kuberuntime.NewBuilder(kuberuntime.Config{
		PodLogsDir: h.config.PodLogsDir, SeccompRoot: filepath.Join(h.config.RootDir, "seccomp"), DNS: h.config.DNS,
		Resources: options, RecursiveReadOnly: recursiveReadOnly, SeccompDefault: h.config.SeccompDefault,
	}))
}

func (h *Helper) podDir(uid types.UID) string { return volume.PodDir(h.config.RootDir, uid) }

// PreparePod implements podworker.Builder.
func (h *Helper) PreparePod(ctx context.Context, pod *corev1.Pod) error {
	if err := h.deps.NodeCgroups.Wait(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(h.podDir(pod.UID), 0o750); err != nil {
		return fmt.Errorf("create directory of Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if err := kuberuntime.EnsureLogDir(h.config.PodLogsDir, pod, ""); err != nil {
		return err
	}
	if _, err := h.deps.Cgroups.EnsurePod(ctx, pod); err != nil {
		return fmt.Errorf("create cgroup of Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// PrepareResources implements podworker.Builder.
func (h *Helper) PrepareResources(ctx context.Context, pod *corev1.Pod) error {
	return h.deps.Managers.PreparePod(ctx, pod)
}

// Sandbox implements podworker.Builder.
func (h *Helper) Sandbox(ctx context.Context, pod *corev1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	if err := h.GroupsPolicy(pod); err != nil {
		return nil, err
	}
	volumes, err := h.deps.Volumes.PersistentVolumes(ctx, pod)
	if err != nil {
		return nil, err
	}
	users, err := h.userNamespace(pod)
	if err != nil {
		return nil, err
	}
	config, warnings, err := h.builder.Load().SandboxConfig(pod, attempt, kuberuntime.SandboxOptions{
		CgroupParent: h.deps.Cgroups.CgroupParent(pod), UserNamespace: users, ExtraGroups: groupsOf(pod, volumes),
	})
	for _, w := range warnings {
		h.warn(pod, w)
	}
	return config, err
}

// userNamespace returns the Pod's user namespace, nil if it uses the node's.
func (h *Helper) userNamespace(pod *corev1.Pod) (*runtimeapi.UserNamespace, error) {
	if !podutil.HasUserNamespace(pod) {
		return nil, nil
	}
	return h.users.Ensure(pod.UID)
}

// warn records an event for what the configuration of a Pod leaves out. That there are no cluster DNS servers concerns
// nearly all Pods, since ClusterFirst is the default: that is one event of the Node.
func (h *Helper) warn(pod *corev1.Pod, w network.Warning) {
	if w.Reason != network.ReasonMissingClusterDNS {
		h.deps.Recorder.Event(pod, corev1.EventTypeWarning, w.Reason, w.Message)
		return
	}
	h.warnNoDNS.Do(func() {
		h.deps.Recorder.Event(node.Reference(h.config.NodeName), corev1.EventTypeNormal, w.Reason,
			"The cluster has no name servers: Pods with dnsPolicy ClusterFirst get the node's resolver configuration")
	})
}

// Container implements podworker.Builder.
func (h *Helper) Container(ctx context.Context, req podworker.ContainerRequest) (*runtimeapi.ContainerConfig, error) {
	pod, c, builder := req.Pod, req.Start.Container, h.builder.Load()
	mounted := h.deps.Volumes.Volumes(pod.UID)
	env, err := h.environment(ctx, req, mounted)
	if err != nil {
		return nil, err
	}
	podDir := h.podDir(pod.UID)
	if err := kuberuntime.EnsureLogDir(h.config.PodLogsDir, pod, c.Name); err != nil {
		return nil, err
	}
	hosts, err := builder.EnsureHostsFile(h.deps.Logger, pod, podDir, h.config.HostsFile, req.PodIPs)
	if err != nil {
		return nil, err
	}
	message := ""
	if c.TerminationMessagePath != "" {
		if message, err = kuberuntime.CreateTerminationLog(podDir, c.Name, req.Start.Attempt); err != nil {
			return nil, err
		}
	}
	inputs := kuberuntime.MountInputs{
		Pod: pod, Container: c, Volumes: map[string]kuberuntime.Volume{}, Env: env, SubPath: h.subPath,
		HostsFile: hosts, TerminationLog: message, SELinux: h.deps.Volumes.SELinuxEnabled(),
	}
	for name, v := range mounted {
		if v.Block {
			continue
		}
		inputs.Volumes[name] = kuberuntime.Volume{HostPath: v.Path, ReadOnly: v.ReadOnly, SELinuxRelabel: v.SELinuxRelabel}
	}
	for name, image := range req.ImageVolumes {
		inputs.Volumes[name] = kuberuntime.Volume{Image: &runtimeapi.ImageSpec{
			Image: imageName(image), UserSpecifiedImage: image.GetSpec().GetImage(),
		}}
	}
	users, err := h.userNamespace(pod)
	if err != nil {
		return nil, err
	}
	mounts, err := builder.Mounts(ctx, inputs)
	if err != nil {
		return nil, err
	}
	build := kuberuntime.ContainerInputs{
		Pod: pod, Start: req.Start, ImageRef: req.Image.GetId(), ImageUser: securitycontext.ImageUserOf(req.Image),
		Env: env, Mounts: mounts, Devices: blockDevices(c, mounted), ExtraGroups: supplementalGroups(pod, mounted),
		UserNamespace: users,
	}
	if err := h.addDevices(ctx, &build); err != nil {
		return nil, err
	}
	config, err := builder.ContainerConfig(build)
	if err != nil {
		return nil, err
	}
	return config, h.place(ctx, pod, c, config.Linux.Resources)
}

// addDevices adds what the container's devices need. Variables of the container itself come after those, and hold.
func (h *Helper) addDevices(ctx context.Context, to *kuberuntime.ContainerInputs) error {
	options, err := h.deps.Managers.PrepareContainer(ctx, to.Pod, to.Start.Container)
	if err != nil || options == nil {
		return err
	}
	var env []envvars.Var
	for _, name := range slices.Sorted(maps.Keys(options.Envs)) {
		env = append(env, envvars.Var{Name: name, Value: options.Envs[name]})
	}
	to.Env = append(env, to.Env...)
	to.Mounts, to.Devices = append(to.Mounts, options.Mounts...), append(to.Devices, options.Devices...)
	to.CDIDevices, to.Annotations = options.CDIDevices, options.Annotations
	return nil
}

// place is pin for a container that is about to start. It waits until others have left the CPUs that are to be its own.
func (h *Helper) place(ctx context.Context, pod *corev1.Pod, c *corev1.Container, to *runtimeapi.LinuxContainerResources) error {
	pin, err := h.deps.Managers.Place(ctx, pod.UID, c.Name)
	h.set(pin, to)
	return err
}

// pin sets the CPUs and the NUMA nodes that the container runs on.
func (h *Helper) pin(pod *corev1.Pod, c *corev1.Container, to *runtimeapi.LinuxContainerResources) {
	h.set(h.deps.Managers.Pin(pod.UID, c.Name), to)
}

// Placed implements podworker.Builder.
func (h *Helper) Placed(uid types.UID, running map[string]string, inTransition func(container string) bool) {
	h.deps.Managers.Placed(uid, running, inTransition)
}

// CPUs implements podworker.Builder.
func (h *Helper) CPUs(uid types.UID, container string) string {
	return h.deps.Managers.Pin(uid, container).CPUs
}

// Move implements podworker.Builder.
func (h *Helper) Move(uid types.UID, container string) string {
	return h.deps.Managers.Move(uid, container).CPUs
}

// set copies where a container runs. Unless configured otherwise, no quota limits the time of CPUs that no other container has.
func (h *Helper) set(pin resources.Pin, to *runtimeapi.LinuxContainerResources) {
	to.CpusetCpus, to.CpusetMems = pin.CPUs, pin.Memory
	if pin.Exclusive && !h.config.NoCPUQuota && !h.config.ExclusiveCPUQuota {
		to.CpuQuota = -1
	}
}

// imageName returns a name by which containerd finds an image to mount: it does not find an image by ID that was not
// pulled through the CRI.
func imageName(image *runtimeapi.Image) string {
	for _, names := range [][]string{image.GetRepoTags(), image.GetRepoDigests()} {
		if len(names) > 0 {
			return names[0]
		}
	}
	return image.GetId()
}

// environment resolves the environment variables of a container.
func (h *Helper) environment(ctx context.Context, req podworker.ContainerRequest,
	mounted map[string]volumemanager.Mounted,
) ([]envvars.Var, error) {
	list, err := h.deps.Services.For(ctx, req.Pod)
	if err != nil {
		return nil, err
	}
	paths := make(map[string]string, len(mounted))
	for name, v := range mounted {
		paths[name] = v.Path
	}
	return envvars.Build(ctx, envvars.Inputs{
		Pod: req.Pod, Container: req.Start.Container, PodIPs: req.PodIPs, HostIPs: h.deps.HostIPs(),
		Allocatable: h.deps.Allocatable(), Services: list, Objects: podObjects{h.deps.Objects}, VolumePaths: paths,
	})
}

// podObjects gets the objects that the environments of Pods refer to.
type podObjects struct{ objects *objects.Manager }

var _ envvars.Objects = podObjects{}

// ConfigMap implements envvars.Objects.
func (o podObjects) ConfigMap(ctx context.Context, pod *corev1.Pod, name string) (*corev1.ConfigMap, error) {
	return o.objects.ConfigMap(ctx, pod.Namespace, name)
}

// Secret implements envvars.Objects.
func (o podObjects) Secret(ctx context.Context, pod *corev1.Pod, name string) (*corev1.Secret, error) {
	return o.objects.Secret(ctx, pod.Namespace, name)
}

func (h *Helper) subPath(ctx context.Context, req kuberuntime.SubPathRequest) (string, error) {
	return h.deps.Volumes.SubPaths().Prepare(ctx, subpath.Request{
		PodDir: h.podDir(req.Pod.UID), VolumeName: req.Volume, VolumePath: req.VolumePath,
		SubPath: req.SubPath, Container: req.Container, Index: req.Index,
	})
}

// Resources implements podworker.Builder.
func (h *Helper) Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	out := h.builder.Load().Resources(pod, c)
	h.pin(pod, c, out)
	return out
}

// DeviceStatus implements podworker.Builder.
func (h *Helper) DeviceStatus(pod *corev1.Pod, container string) []corev1.ResourceStatus {
	return h.deps.Managers.DeviceStatus(pod, container)
}

// SandboxResources implements podworker.Builder.
func (h *Helper) SandboxResources(pod *corev1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources) {
	return h.builder.Load().SandboxResources(pod)
}

// ResizePod implements podworker.Builder.
func (h *Helper) ResizePod(ctx context.Context, pod *corev1.Pod, limited bool) error {
	if !limited {
		return h.deps.Cgroups.UnlimitPod(ctx, pod)
	}
	_, err := h.deps.Cgroups.EnsurePod(ctx, pod)
	return err
}

// SetClassRequests implements podworker.Builder.
func (h *Helper) SetClassRequests(ctx context.Context, requests cm.Requests) error {
	if err := h.deps.NodeCgroups.Wait(ctx); err != nil {
		return err
	}
	return h.deps.Cgroups.UpdateClasses(ctx, requests)
}

// UnprepareResources implements podworker.Builder.
func (h *Helper) UnprepareResources(ctx context.Context, uid types.UID) error {
	return h.deps.Managers.UnpreparePod(ctx, uid)
}

// ReleasePod implements podworker.Builder.
func (h *Helper) ReleasePod(ctx context.Context, uid types.UID) error {
	if err := h.deps.NodeCgroups.Wait(ctx); err != nil {
		return err
	}
	if err := h.deps.Managers.UnpreparePod(ctx, uid); err != nil {
		return err
	}
	if err := h.deps.Cgroups.RemovePod(ctx, uid); err != nil {
		return err
	}
	return h.users.Release(uid)
}

// ForgetPod implements podworker.Builder.
func (h *Helper) ForgetPod(_ context.Context, pod *corev1.Pod) error {
	if err := h.deps.Volumes.RemovePodDir(pod.UID); err != nil {
		return fmt.Errorf("remove directory of Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if pod.Name == "" {
		return nil // the runtime may not know the name of an orphaned Pod
	}
	dir := kuberuntime.PodLogsDir(h.config.PodLogsDir, pod.Namespace, pod.Name, pod.UID)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove logs of Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// LastAttempt implements podworker.Builder.
func (h *Helper) LastAttempt(pod *corev1.Pod, name string) (uint32, bool) {
	return kuberuntime.LastAttemptInLogs(h.config.PodLogsDir, pod, name)
}

// TerminationMessage implements podworker.Builder. It cuts the file of the message to what is used of it.
func (h *Helper) TerminationMessage(ctx context.Context, c *container.ContainerStatus) string {
	message := logs.TerminationMessage(ctx, c)
	if c.State == container.StateExited {
		if err := kuberuntime.CutTerminationLog(volume.PodsDir(h.config.RootDir), c, logs.MaxTerminationMessage); err != nil {
			h.deps.Logger.Warn("failed to cut the file of a termination message", "container", c.Name, "error", err)
		}
	}
	return message
}

// RemoveTerminationLog implements podworker.Builder.
func (h *Helper) RemoveTerminationLog(c *container.ContainerStatus) error {
	return kuberuntime.RemoveTerminationLog(volume.PodsDir(h.config.RootDir), c)
}
