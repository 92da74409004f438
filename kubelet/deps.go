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
	// Builder makes the Kubelet that RunKubelet starts; nil is NewMainKubelet, which therefore does not read it.
	Builder KubeletBuilder
	// ContainerRuntimeOptions change the container runtime's client, Options the Kubelet.
	ContainerRuntimeOptions []container.Option
	Options                 []Option

	// Auth authenticates and authorizes clients of the server; nil asks the API server.
	Auth server.AuthInterface
	// CAdvisorInterface reports the machine's hardware, which is the Node's capacity, the usage of the node in
	// /stats/summary, and OOM kills; nil reads the kernel's files.
	CAdvisorInterface cadvisor.Interface
	// Cloud names the Node, and provides its addresses, provider ID, instance type, zone and region. Nil is a machine of
	// no cloud, or one whose Node a cloud's own controller manager completes.
	Cloud cloudprovider.Interface
	// ContainerManager has the layout of cgroups and what is reserved in them; nil is that of the configuration.
	ContainerManager cm.ContainerManager
	// DockerClient stands in for the connection to the container runtime. It has kept its name from the time when
	// there was one runtime.
	DockerClient container.Runtime
	// EventClient takes events if Recorder is nil.
	EventClient typedcorev1.EventsGetter
	// KubeClient speaks to the API server with the node's identity; ExternalKubeClient is used if it is nil.
	KubeClient, ExternalKubeClient kubernetes.Interface
	// Mounter mounts and unmounts the volumes of Pods, and VolumePlugins get it from their host; nil uses system calls, and
	// so does any Mounter's mount of a part of a volume (subPath), which is known by an open file and not by a path.
	Mounter mount.Interface
	// NetworkPlugins keep the node from being ready while their Status is an error.
	NetworkPlugins []network.NetworkPlugin
	// OOMAdjuster sets the kubelet's own score.
	OOMAdjuster *oom.OOMAdjuster
	// OSInterface provides the host name, and makes the kubelet's own directories and the links to container logs; nil is
	// this machine. What lies in a Pod's directory is not made with it: it knows paths only, and a Pod could have put a
	// link there.
	OSInterface container.OSInterface
	// Writer writes files of VolumePlugins, which get it from their host; nil writes to this machine's file system.
	Writer kubeio.Writer
	// PodConfig provides the updates that Run receives. If it is nil, Pods come from the API server and from the static
	// sources of the configuration.
	PodConfig *config.PodConfig
	// Recorder takes events.
	Recorder record.EventRecorder
	// VolumePlugins set up volumes of Pods. A volume that one of them supports is theirs; the others are of the kubelet's own
	// plugins. NewMainKubelet initializes them.
	VolumePlugins []volume.VolumePlugin
	// TLSOptions are those of ListenAndServe if it is given none.
	TLSOptions *server.TLSOptions
}
