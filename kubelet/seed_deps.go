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
	// Builder is for callers that start a Kubelet: who finds one here uses it in place of NewMainKubelet.
	Builder KubeletBuilder
	// ContainerRuntimeOptions change the container runtime's client, Options the Kubelet.
	ContainerRuntimeOptions []container.Option
	Options                 []Option

	// Auth decides who may ask the server what; nil asks the API server.
	Auth server.AuthInterface
	// CAdvisorInterface tells of the machine; nil reads the kernel's files.
	CAdvisorInterface cadvisor.Interface
	// Cloud names the machine's addresses and its provider id, if it has a Cloud; nil has none.
	Cloud cloudprovider.Interface
	// ContainerManager tells of the control groups; nil is the configuration's.
	ContainerManager cm.ContainerManager
	// DockerClient stands in for the connection to the container runtime. It has kept its name from the time when
	// there was one runtime.
	DockerClient Runtime
	// EventClient takes events if Recorder is nil.
	EventClient typedcorev1.EventsGetter
	// KubeClient speaks to the API server with the node's identity; ExternalKubeClient is used if it is nil.
	KubeClient, ExternalKubeClient kubernetes.Interface
	// Mounter is there for volume plugins of the caller's; the node agent's own use the kernel.
	Mounter mount.Interface
	// NetworkPlugins keep the node from being ready while their Status is an error.
	NetworkPlugins []network.NetworkPlugin
	// OOMAdjuster sets the node agent's own score.
	OOMAdjuster *oom.OOMAdjuster
	// OSInterface and Writer are for callers' extensions; nil is this machine's.
	OSInterface container.OSInterface
	Writer      kubeio.Writer
	// PodConfig gives the updates that Run takes. If it is nil Pods come from the API server and from the static
	// sources of the configuration.
	PodConfig *config.PodConfig
	// Recorder takes events.
	Recorder record.EventRecorder
	// VolumePlugins are looked up by NewInitializedVolumePluginMgr's callers.
	VolumePlugins []volume.VolumePlugin
	// TLSOptions are the server's.
	TLSOptions *server.TLSOptions
}
