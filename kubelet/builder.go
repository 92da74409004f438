package kubelet

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/envvars"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/logs"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/objects"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/securitycontext"
	"github.com/berth-dev/berth/kubelet/userns"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume/subpath"
)

// volumeGroupAnnotation is upstream's: a PersistentVolume with it belongs to that group.
const volumeGroupAnnotation = "pv.beta.kubernetes.io/gid"

// builder gathers what the runtime is told about a Pod from the rooms that know it.
type builder struct {
	cfg      Config
	client   kubernetes.Interface
	recorder record.EventRecorder
	words    atomic.Pointer[kuberuntime.Builder] // replaced when the runtime has said what it can do
	cgroups  *cm.Manager
	volumes  *volumemanager.Manager
	objects  *objects.Manager
	services *services
	users    *userns.Manager
	hostIPs  func() []string
	noDNS    sync.Once
	// ground waits until control groups can be made.
	ground func(ctx context.Context) error
	// allocatable is what Pods may use of the node: the value of limits that are not set.
	allocatable func() corev1.ResourceList
}

var _ podworker.Builder = (*builder)(nil)

// PreparePod implements podworker.Builder.
func (b *builder) PreparePod(ctx context.Context, pod *corev1.Pod) error {
	if err := b.ground(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(b.cfg.podDir(string(pod.UID)), 0o750); err != nil {
		return fmt.Errorf("make directory of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if err := kuberuntime.EnsureLogDir(b.cfg.PodLogsDir, pod, ""); err != nil {
		return err
	}
	if _, err := b.cgroups.EnsurePod(ctx, pod); err != nil {
		return fmt.Errorf("make control group of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// Sandbox implements podworker.Builder.
func (b *builder) Sandbox(ctx context.Context, pod *corev1.Pod, attempt uint32) (
	*runtimeapi.PodSandboxConfig, string, error,
) {
	handler := ""
	if name := pod.Spec.RuntimeClassName; name != nil && *name != "" {
		class, err := b.client.NodeV1().RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
		if err != nil {
			return nil, "", fmt.Errorf("find RuntimeClass %q: %w", *name, err)
		}
		handler = class.Handler
	}
	users, err := b.userNamespace(pod)
	if err != nil {
		return nil, "", err
	}
	config, warnings, err := b.words.Load().SandboxConfig(pod, attempt, kuberuntime.SandboxOptions{
		CgroupParent: b.cgroups.CgroupParent(pod), UserNamespace: users,
	})
	for _, w := range warnings {
		b.warn(pod, w)
	}
	return config, handler, err
}

// userNamespace is the Pod's own user namespace, nil if it lives in the node's.
func (b *builder) userNamespace(pod *corev1.Pod) (*runtimeapi.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil, nil
	}
	return b.users.Ensure(pod.UID)
}

// warn tells of what a Pod's wording had to leave out. That the cluster has no name servers concerns all Pods, nearly
// all of which ask for them because nothing was said: it is told once, of the node.
func (b *builder) warn(pod *corev1.Pod, w network.Warning) {
	if w.Reason != network.ReasonMissingClusterDNS {
		b.recorder.Event(pod, corev1.EventTypeWarning, w.Reason, w.Message)
		return
	}
	b.noDNS.Do(func() {
		b.recorder.Event(node.Reference(b.cfg.NodeName), corev1.EventTypeNormal, w.Reason,
			"The cluster has no name servers: Pods with dnsPolicy ClusterFirst get the node's resolver configuration")
	})
}

// extraGroups are the groups that the PersistentVolumes of a Pod say their users need to be in.
func extraGroups(mounted map[string]volumemanager.Mounted) []int64 {
	var groups []int64
	for _, v := range mounted {
		if v.Spec.PV == nil {
			continue
		}
		gid, err := strconv.ParseInt(v.Spec.PV.Annotations[volumeGroupAnnotation], 10, 64)
		if err == nil && gid > 0 && !slices.Contains(groups, gid) {
			groups = append(groups, gid)
		}
	}
	slices.Sort(groups)
	return groups
}

// Container implements podworker.Builder.
func (b *builder) Container(ctx context.Context, req podworker.ContainerRequest) (*runtimeapi.ContainerConfig, error) {
	pod, c, words := req.Pod, req.Start.Container, b.words.Load()
	mounted := b.volumes.Volumes(pod.UID)
	env, err := b.environment(ctx, req, mounted)
	if err != nil {
		return nil, err
	}
	podDir := b.cfg.podDir(string(pod.UID))
	if err := kuberuntime.EnsureLogDir(b.cfg.PodLogsDir, pod, c.Name); err != nil {
		return nil, err
	}
	hosts, err := words.EnsureHostsFile(pod, podDir, b.cfg.HostsFile, req.PodIPs)
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
		Pod: pod, Container: c, Volumes: map[string]kuberuntime.Volume{}, Env: env, SubPath: b.subPath,
		HostsFile: hosts, TerminationLog: message,
	}
	for name, v := range mounted {
		if v.Block {
			continue
		}
		inputs.Volumes[name] = kuberuntime.Volume{HostPath: v.Path, ReadOnly: v.ReadOnly}
	}
	for name, image := range req.ImageVolumes {
		inputs.Volumes[name] = kuberuntime.Volume{Image: &runtimeapi.ImageSpec{
			Image: nameOf(image), UserSpecifiedImage: image.GetSpec().GetImage(),
		}}
	}
	users, err := b.userNamespace(pod)
	if err != nil {
		return nil, err
	}
	mounts, err := words.Mounts(ctx, inputs)
	if err != nil {
		return nil, err
	}
	return words.ContainerConfig(kuberuntime.ContainerInputs{
		Pod: pod, Start: req.Start, ImageRef: req.Image.GetId(), ImageUser: securitycontext.ImageUserOf(req.Image),
		Env: env, Mounts: mounts, Devices: blockDevices(c, mounted), ExtraGroups: extraGroups(mounted),
		UserNamespace: users,
	})
}

// nameOf is a name by which containerd finds an image to be mounted: for one that was not pulled through the CRI, its
// id is none.
func nameOf(image *runtimeapi.Image) string {
	for _, names := range [][]string{image.GetRepoTags(), image.GetRepoDigests()} {
		if len(names) > 0 {
			return names[0]
		}
	}
	return image.GetId()
}

// environment resolves a container's environment.
func (b *builder) environment(ctx context.Context, req podworker.ContainerRequest,
	mounted map[string]volumemanager.Mounted,
) ([]envvars.Var, error) {
	list, err := b.services.all(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for the list of services: %w", err)
	}
	paths := make(map[string]string, len(mounted))
	for name, v := range mounted {
		paths[name] = v.Path
	}
	return envvars.Build(ctx, envvars.Inputs{
		Pod: req.Pod, Container: req.Start.Container, PodIPs: req.PodIPs, HostIPs: b.hostIPs(),
		Allocatable: b.allocatable(), Services: list, Objects: podObjects{b.objects}, VolumePaths: paths,
	})
}

// podObjects are the objects that Pods refer to in their environment.
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

func (b *builder) subPath(ctx context.Context, req kuberuntime.SubPathRequest) (string, error) {
	return b.volumes.SubPaths().Prepare(ctx, subpath.Request{
		PodDir: b.cfg.podDir(string(req.Pod.UID)), VolumeName: req.Volume, VolumePath: req.VolumePath,
		SubPath: req.SubPath, Container: req.Container, Index: req.Index,
	})
}

// Resources implements podworker.Builder.
func (b *builder) Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	return b.words.Load().Resources(pod, c)
}

// ResizePod implements podworker.Builder.
func (b *builder) ResizePod(ctx context.Context, pod *corev1.Pod, limited bool) error {
	if !limited {
		return b.cgroups.UnlimitPod(ctx, pod)
	}
	_, err := b.cgroups.EnsurePod(ctx, pod)
	return err
}

// SetBurstableCPU implements podworker.Builder.
func (b *builder) SetBurstableCPU(ctx context.Context, milliCPU int64) error {
	if err := b.ground(ctx); err != nil {
		return err
	}
	return b.cgroups.UpdateBurstable(ctx, milliCPU)
}

// ReleasePod implements podworker.Builder.
func (b *builder) ReleasePod(ctx context.Context, uid types.UID) error {
	if err := b.ground(ctx); err != nil {
		return err
	}
	if err := b.cgroups.RemovePod(ctx, uid); err != nil {
		return err
	}
	return b.users.Release(uid) // nothing runs in it any more
}

// ForgetPod implements podworker.Builder.
func (b *builder) ForgetPod(_ context.Context, pod *corev1.Pod) error {
	if err := b.volumes.RemovePodDir(pod.UID); err != nil {
		return fmt.Errorf("remove directory of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if pod.Name == "" {
		return nil // of an unwanted Pod the runtime may not know the name
	}
	dir := kuberuntime.PodLogsDir(b.cfg.PodLogsDir, pod.Namespace, pod.Name, pod.UID)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove logs of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// LastAttempt implements podworker.Builder.
func (b *builder) LastAttempt(pod *corev1.Pod, name string) (uint32, bool) {
	return kuberuntime.LastAttemptInLogs(b.cfg.PodLogsDir, pod, name)
}

// TerminationMessage implements podworker.Builder.
func (b *builder) TerminationMessage(ctx context.Context, c *container.ContainerStatus) string {
	return logs.TerminationMessage(ctx, c)
}
