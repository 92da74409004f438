package kubelet_test

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	v1 "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	clientremotecommand "k8s.io/client-go/tools/remotecommand"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	mount "k8s.io/mount-utils"

	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/secret"
	"github.com/berth-dev/berth/kubelet/server"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
	kubeio "github.com/berth-dev/berth/kubelet/util/io"
	"github.com/berth-dev/berth/kubelet/util/iptables"
	"github.com/berth-dev/berth/kubelet/util/oom"
	"github.com/berth-dev/berth/kubelet/volume"
)

// This file does not compile if a documented name is missing or has another signature.

const (
	_ = kubelet.ContainerLogsDir
	_ = time.Duration(kubelet.MaxContainerBackOff)
	_ = time.Duration(kubelet.ContainerGCPeriod)
	_ = time.Duration(kubelet.ImageGCPeriod)
)

var _ = []iptables.Chain{
	kubelet.KubeMarkMasqChain, kubelet.KubeMarkDropChain, kubelet.KubePostroutingChain, kubelet.KubeFirewallChain,
}

var (
	_ func(*corev1.PodSpec, []corev1.ContainerStatus) corev1.PodPhase = kubelet.GetPhase

	_ func(*kubelet.Kubelet, secret.Manager, []volume.VolumePlugin) (*volume.VolumePluginMgr, error) = kubelet.
		NewInitializedVolumePluginMgr
	_ func(_, _ map[string]string) (*kubelettypes.Reservation, error)                                 = kubelet.ParseReservation
	_ func(*kubeletconfig.KubeletConfiguration, *kubelet.KubeletDeps, bool) (*kubelet.Kubelet, error) = kubelet.NewMainKubelet
	_ func(cadvisor.Interface, record.EventRecorder) kubelet.OOMWatcher                               = kubelet.NewOOMWatcher
	_ func() *kubelet.ReasonCache                                                                     = kubelet.NewReasonCache
	_ kubelet.KubeletBuilder                                                                          = bootstrap
	_ kubelet.Option                                                                                  = func(*kubelet.Kubelet) {}
	_ kubelet.OnCompleteFunc                                                                          = func(error) {}
	_ kubelet.PodStatusFunc                                                                           = func(*corev1.Pod, *container.PodStatus) corev1.PodStatus { return corev1.PodStatus{} }
)

// bootstrap shows that a *Kubelet is what a builder makes.
func bootstrap(in *kubeletconfig.KubeletConfiguration, deps *kubelet.KubeletDeps, standalone bool,
) (kubelet.KubeletBootstrap, error) {
	return kubelet.NewMainKubelet(in, deps, standalone)
}

// methods are the documented ones of Kubelet.
type methods interface {
	kubelet.KubeletBootstrap
	kubelet.SyncHandler
	AttachContainer(podFullName string, podUID types.UID, containerName string, stdin io.Reader,
		stdout, stderr io.WriteCloser, tty bool, resize <-chan clientremotecommand.TerminalSize) error
	ExecInContainer(podFullName string, podUID types.UID, containerName string, cmd []string, stdin io.Reader,
		stdout, stderr io.WriteCloser, tty bool, resize <-chan clientremotecommand.TerminalSize, timeout time.Duration) error
	GeneratePodHostNameAndDomain(pod *corev1.Pod) (string, string, error)
	GenerateRunContainerOptions(pod *corev1.Pod, c *corev1.Container, podIP string) (*container.RunContainerOptions, error)
	GetAttach(podFullName string, podUID types.UID, containerName string, opts remotecommand.Options) (*url.URL, error)
	GetCachedMachineInfo() (*v1.MachineInfo, error)
	GetClusterDNS(pod *corev1.Pod) ([]string, []string, error)
	GetContainerInfo(podFullName string, podUID types.UID, containerName string, req *v1.ContainerInfoRequest,
	) (*v1.ContainerInfo, error)
	GetContainerInfoV2(name string, options v2.RequestOptions) (map[string]v2.ContainerInfo, error)
	GetExec(podFullName string, podUID types.UID, containerName string, cmd []string, opts remotecommand.Options,
	) (*url.URL, error)
	GetExtraSupplementalGroupsForPod(pod *corev1.Pod) []int64
	GetHostIP() (net.IP, error)
	GetHostname() string
	GetKubeClient() kubernetes.Interface
	GetKubeletContainerLogs(podFullName, containerName string, logOptions *corev1.PodLogOptions,
		stdout, stderr io.Writer) error
	GetNode() (*corev1.Node, error)
	GetNodeConfig() cm.NodeConfig
	GetPodByFullName(podFullName string) (*corev1.Pod, bool)
	GetPodByName(namespace, name string) (*corev1.Pod, bool)
	GetPodDir(podUID types.UID) string
	GetPods() []*corev1.Pod
	GetPortForward(podName, podNamespace string, podUID types.UID, opts portforward.V4Options) (*url.URL, error)
	GetRawContainerInfo(containerName string, req *v1.ContainerInfoRequest, subcontainers bool,
	) (map[string]*v1.ContainerInfo, error)
	GetRunningPods() ([]*corev1.Pod, error)
	GetRuntime() container.Runtime
	HasDedicatedImageFs() (bool, error)
	ImagesFsInfo() (v2.FsInfo, error)
	LatestLoopEntryTime() time.Time
	ListVolumesForPod(podUID types.UID) (map[string]volume.Volume, bool)
	PortForward(podFullName string, podUID types.UID, port int32, stream io.ReadWriteCloser) error
	ResyncInterval() time.Duration
	RootFsInfo() (v2.FsInfo, error)
	RunInContainer(podFullName string, podUID types.UID, containerName string, cmd []string) ([]byte, error)
	ServeLogs(w http.ResponseWriter, req *http.Request)
	StreamingConnectionIdleTimeout() time.Duration
	// Of the embedded lists.
	ShouldSync(pod *corev1.Pod) bool
	ShouldEvict(pod *corev1.Pod) lifecycle.ShouldEvictResponse
}

var _ methods = (*kubelet.Kubelet)(nil)

var _ = []any{
	(&kubelet.Kubelet{}).PodSyncLoopHandlers, (&kubelet.Kubelet{}).PodSyncHandlers,
	kubelet.DiskSpacePolicy{DockerFreeDiskMB: 1, RootFreeDiskMB: 1},
	kubelet.KillPodOptions{PodStatusFunc: nil, PodTerminationGracePeriodSecondsOverride: new(int64)},
	kubelet.RunPodResult{Pod: &corev1.Pod{}, Err: io.EOF},
	kubelet.UpdatePodOptions{
		Pod: &corev1.Pod{}, MirrorPod: &corev1.Pod{}, UpdateType: kubelettypes.SyncPodKill,
		OnCompleteFunc: func(error) {}, KillPodOptions: &kubelet.KillPodOptions{},
	},
	kubelet.KubeletDeps{
		Builder: bootstrap, ContainerRuntimeOptions: []container.Option{}, Options: []kubelet.Option{},
		Auth: server.AuthInterface(nil), CAdvisorInterface: cadvisor.Interface(nil), Cloud: cloudprovider.Interface(nil),
		ContainerManager: cm.ContainerManager(nil), DockerClient: nil, EventClient: typedcorev1.EventsGetter(nil),
		KubeClient: kubernetes.Interface(nil), ExternalKubeClient: kubernetes.Interface(nil),
		Mounter: mount.Interface(nil), NetworkPlugins: []network.NetworkPlugin{}, OOMAdjuster: &oom.OOMAdjuster{},
		OSInterface: container.OSInterface(nil), PodConfig: &config.PodConfig{}, Recorder: record.EventRecorder(nil),
		Writer: kubeio.Writer(nil), VolumePlugins: []volume.VolumePlugin{}, TLSOptions: &server.TLSOptions{},
	},
}

// workers shows that a caller can stand in for PodWorkers, with a map of its own.
type workers struct{}

func (workers) UpdatePod(*kubelet.UpdatePodOptions)                {}
func (workers) ForgetNonExistingPodWorkers(map[types.UID]struct{}) {}
func (workers) ForgetWorker(types.UID)                             {}
func (workers) Start(*corev1.ObjectReference) error                { return nil }

var (
	_ kubelet.PodWorkers = workers{}
	_ kubelet.OOMWatcher = workers{}
)

type reasons interface {
	Get(uid types.UID, name string) (error, string, bool)
	Remove(uid types.UID, name string)
	Update(uid types.UID, result container.PodSyncResult)
}

var _ reasons = (*kubelet.ReasonCache)(nil)
