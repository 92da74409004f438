package kubelet

import (
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	mount "k8s.io/mount-utils"

	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/server"
	kubeio "github.com/berth-dev/berth/kubelet/util/io"
	"github.com/berth-dev/berth/kubelet/util/oom"
	"github.com/berth-dev/berth/kubelet/volume"
)

// Option changes a Kubelet in NewMainKubelet: after the configuration was read, before its agent is made.
type Option func(*Kubelet)

// KubeletBuilder returns a Kubelet that is ready to be started. A caller may wrap it.
type KubeletBuilder func(kubeCfg *kubeletconfig.KubeletConfiguration, kubeDeps *KubeletDeps, standaloneMode bool,
) (KubeletBootstrap, error)

// KubeletDeps are the dependencies of NewMainKubelet. All may be nil. It has many fields because the 1.4 API has them.
type KubeletDeps struct {
	// Builder is for programs that start a Kubelet: who finds one here calls it in place of NewMainKubelet, which
	// therefore does not read it.
	Builder KubeletBuilder
	// ContainerRuntimeOptions change the container runtime's client, Options the Kubelet.
	ContainerRuntimeOptions []container.Option
	Options                 []Option

	// Auth authenticates and authorizes clients of the server; nil asks the API server.
	Auth server.AuthInterface
	// CAdvisorInterface reads the machine's hardware; nil reads the kernel's files.
	CAdvisorInterface cadvisor.Interface
	// Cloud is kept for callers and not used: a cloud's own controller manager gives a Node its addresses, provider id
	// and zone now, and the kubelet does not change these.
	Cloud cloudprovider.Interface
	// ContainerManager has the layout of cgroups; nil is that of the configuration.
	ContainerManager cm.ContainerManager
	// DockerClient stands in for the connection to the container runtime. It has kept its name from the time when
	// there was one runtime.
	DockerClient container.Runtime
	// EventClient takes events if Recorder is nil.
	EventClient typedcorev1.EventsGetter
	// KubeClient speaks to the API server with the node's identity; ExternalKubeClient is used if it is nil.
	KubeClient, ExternalKubeClient kubernetes.Interface
	// Mounter is passed to VolumePlugins by their caller. The kubelet's own plugins do not use it: they mount through
	// file descriptors, which its paths cannot replace.
	Mounter mount.Interface
	// NetworkPlugins keep the node from being ready while their Status is an error.
	NetworkPlugins []network.NetworkPlugin
	// OOMAdjuster sets the kubelet's own score.
	OOMAdjuster *oom.OOMAdjuster
	// OSInterface is asked for the host name; nil is this machine's. Files are not made through it, nor through Writer:
	// both know paths only, and what lies in a Pod's directory must be opened inside of it (a Pod could have put a
	// link there). Writer is kept for callers.
	OSInterface container.OSInterface
	Writer      kubeio.Writer
	// PodConfig provides the updates that Run receives. If it is nil, Pods come from the API server and from the static
	// sources of the configuration.
	PodConfig *config.PodConfig
	// Recorder takes events.
	Recorder record.EventRecorder
	// VolumePlugins are for NewInitializedVolumePluginMgr, whose callers hand them to it. Pods' volumes are set up by the
	// plugins of package volume.
	VolumePlugins []volume.VolumePlugin
	// TLSOptions are those of ListenAndServe if it is given none.
	TLSOptions *server.TLSOptions
}
