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

// Option changes a Kubelet while NewMainKubelet makes it: after the configuration was read, before the rooms are made.
type Option func(*Kubelet)

// KubeletBuilder makes a Kubelet that is ready to be started. A caller may wrap what it returns.
type KubeletBuilder func(kubeCfg *kubeletconfig.KubeletConfiguration, kubeDeps *KubeletDeps, standaloneMode bool,
) (KubeletBootstrap, error)

// KubeletDeps are what callers hand in for NewMainKubelet. All may be left nil.
type KubeletDeps struct {
	// Builder is for programs that start a Kubelet: who finds one here calls it in place of NewMainKubelet, which
	// therefore does not look at it.
	Builder KubeletBuilder
	// ContainerRuntimeOptions change the container runtime's client, Options the Kubelet.
	ContainerRuntimeOptions []container.Option
	Options                 []Option

	// Auth decides who may ask the server what; nil asks the API server.
	Auth server.AuthInterface
	// CAdvisorInterface tells of the machine; nil reads the kernel's files.
	CAdvisorInterface cadvisor.Interface
	// Cloud is kept for callers and not asked: a cloud's own controller manager gives a Node its addresses, provider id
	// and zone now, and the node agent leaves what it has written there alone.
	Cloud cloudprovider.Interface
	// ContainerManager tells of the control groups; nil is the configuration's.
	ContainerManager cm.ContainerManager
	// DockerClient stands in for the connection to the container runtime. It has kept its name from the time when
	// there was one runtime.
	DockerClient container.Runtime
	// EventClient takes events if Recorder is nil.
	EventClient typedcorev1.EventsGetter
	// KubeClient speaks to the API server with the node's identity; ExternalKubeClient is used if it is nil.
	KubeClient, ExternalKubeClient kubernetes.Interface
	// Mounter is given to VolumePlugins by their maker. The node agent's own plugins do not use it: they mount through
	// file descriptors, which its paths cannot stand for.
	Mounter mount.Interface
	// NetworkPlugins keep the node from being ready while their Status is an error.
	NetworkPlugins []network.NetworkPlugin
	// OOMAdjuster sets the node agent's own score.
	OOMAdjuster *oom.OOMAdjuster
	// OSInterface is asked for the host name; nil is this machine's. Files are not made through it, nor through Writer:
	// both know paths only, and what lies in a Pod's directory must be opened inside of it (a Pod could have put a
	// link there). Writer is kept for callers.
	OSInterface container.OSInterface
	Writer      kubeio.Writer
	// PodConfig gives the updates that Run takes. If it is nil Pods come from the API server and from the static
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
