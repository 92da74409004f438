package kubelet

import (
	"errors"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/network"
)

// GetConfiguration returns the configuration that is in force, with defaults, as /configz shows it. The caller owns it.
func (k *Kubelet) GetConfiguration() kubeletconfig.KubeletConfiguration {
	return *k.agent.Configuration()
}

// GetHostname returns the machine's name as the Node has it.
func (k *Kubelet) GetHostname() string {
	if k.config.Node.Hostname != "" {
		return k.config.Node.Hostname
	}
	return k.config.Node.Name
}

// GetHostIP returns the node's primary address.
func (k *Kubelet) GetHostIP() (net.IP, error) {
	ips := k.parts.Addresses.IPs()
	if len(ips) == 0 {
		return nil, fmt.Errorf("node %q has no address", k.config.Node.Name)
	}
	return ips[0], nil
}

// GetKubeClient returns the client of the API server; without an API server, one of which every call fails.
func (k *Kubelet) GetKubeClient() kubernetes.Interface { return k.deps.Client }

// GetRuntime returns the container runtime.
func (k *Kubelet) GetRuntime() container.Runtime { return k.parts.Runtime }

// GetNode returns the Node as the API server had it last. Before that, and without an API server, it is what the kubelet
// would register. It must not be modified.
func (k *Kubelet) GetNode() (*corev1.Node, error) {
	if node := k.parts.Node.Node(); node != nil {
		return node, nil
	}
	capacity, allocatable, err := k.parts.Node.Resources()
	if err != nil {
		return nil, fmt.Errorf("build Node %q: %w", k.config.Node.Name, err)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.config.Node.Name, Labels: map[string]string{
			corev1.LabelHostname: k.GetHostname(), corev1.LabelOSStable: string(corev1.Linux),
		}},
		Spec:   corev1.NodeSpec{Taints: k.config.Node.Taints},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: allocatable},
	}
	for key, value := range k.config.Node.Labels {
		node.Labels[key] = value
	}
	for _, ip := range k.parts.Addresses.IPs() {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	node.Status.Addresses = append(node.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeHostName, Address: k.GetHostname()})
	return node, nil
}

// GetNodeConfig returns the layout of the node's cgroups.
func (k *Kubelet) GetNodeConfig() cm.NodeConfig { return k.agent.NodeConfig() }

// GetClusterDNS returns the name servers and the search domains of the Pod.
func (k *Kubelet) GetClusterDNS(pod *corev1.Pod) ([]string, []string, error) {
	config, warnings, err := k.config.DNS.ForPod(pod)
	if err != nil {
		return nil, nil, err
	}
	for _, w := range warnings {
		k.deps.Recorder.Event(pod, corev1.EventTypeWarning, w.Reason, w.Message)
	}
	return config.GetServers(), config.GetSearches(), nil
}

// GeneratePodHostNameAndDomain returns the Pod's hostname, and its domain if it has one.
func (k *Kubelet) GeneratePodHostNameAndDomain(pod *corev1.Pod) (string, string, error) {
	return network.Hostname(pod, k.config.DNS.ClusterDomain)
}

// GetExtraSupplementalGroupsForPod returns the groups of the Pod's mounted PersistentVolumes, without those that the Pod
// lists itself.
func (k *Kubelet) GetExtraSupplementalGroupsForPod(pod *corev1.Pod) []int64 {
	return k.parts.RuntimeHelper.SupplementalGroups(pod)
}

// ResyncInterval is how often a Pod without events is synced, as a safety net.
func (k *Kubelet) ResyncInterval() time.Duration {
	return k.configuration.SyncFrequency.Duration
}

// StreamingConnectionIdleTimeout is how long a stream to a container may be idle.
func (k *Kubelet) StreamingConnectionIdleTimeout() time.Duration {
	return k.configuration.StreamingConnectionIdleTimeout.Duration
}

// GenerateRunContainerOptions returns the options that the container would be started with now.
func (k *Kubelet) GenerateRunContainerOptions(pod *corev1.Pod, c *corev1.Container, podIP string,
) (*container.RunContainerOptions, error) {
	if pod == nil || c == nil {
		return nil, errors.New("generate container options: a Pod and a container are required")
	}
	return k.containerOptions(pod, c, podIP)
}
