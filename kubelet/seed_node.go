package kubelet

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/network"
)

const (
	defaultSyncFrequency = time.Minute
	defaultStreamIdle    = 4 * time.Hour
	// supplementalGroupAnnotation is the group that a PersistentVolume's content belongs to.
	supplementalGroupAnnotation = "pv.beta.kubernetes.io/gid"
)

// GetConfiguration is the configuration that the Kubelet works with. The caller owns it.
func (k *Kubelet) GetConfiguration() kubeletconfig.KubeletConfiguration {
	out := *k.face.configuration.DeepCopy()
	out.ContainerRuntimeEndpoint, out.PodLogsDir = k.cfg.RuntimeEndpoint, k.cfg.PodLogsDir
	out.ClusterDomain, out.ClusterDNS = k.cfg.ClusterDomain, slices.Clone(k.cfg.ClusterDNS)
	out.MaxPods, out.CgroupRoot, out.ResolverConfig = int32(k.cfg.MaxPods), k.cfg.CgroupRoot, &k.cfg.ResolvConf
	out.StaticPodPath, out.StaticPodURL = k.cfg.Static.Path, k.cfg.Static.URL
	out.SyncFrequency.Duration, out.StreamingConnectionIdleTimeout.Duration = k.ResyncInterval(),
		k.StreamingConnectionIdleTimeout()
	return out
}

// GetHostname is the machine's name as the Node has it.
func (k *Kubelet) GetHostname() string {
	if k.cfg.Hostname != "" {
		return k.cfg.Hostname
	}
	return k.cfg.NodeName
}

// GetHostIP is the node's primary address.
func (k *Kubelet) GetHostIP() (net.IP, error) {
	ips := k.addresses.IPs()
	if len(ips) == 0 {
		return nil, fmt.Errorf("node %q has no address", k.cfg.NodeName)
	}
	return ips[0], nil
}

// GetKubeClient is the API server's client; without an API server, one of which every call fails.
func (k *Kubelet) GetKubeClient() kubernetes.Interface { return k.deps.Client }

// GetRuntime is the container runtime.
func (k *Kubelet) GetRuntime() container.Runtime { return k.runtime }

// GetNode is the Node as the API server had it last. Before that, and without an API server, it is what the node
// agent would register. It must not be modified.
func (k *Kubelet) GetNode() (*corev1.Node, error) {
	if node := k.node.Node(); node != nil {
		return node, nil
	}
	capacity, allocatable, err := k.node.Resources()
	if err != nil {
		return nil, fmt.Errorf("make up node %q: %w", k.cfg.NodeName, err)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.cfg.NodeName, Labels: map[string]string{
			corev1.LabelHostname: k.GetHostname(), corev1.LabelOSStable: string(corev1.Linux),
		}},
		Spec:   corev1.NodeSpec{Taints: k.cfg.Taints},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: allocatable},
	}
	for key, value := range k.cfg.Labels {
		node.Labels[key] = value
	}
	for _, ip := range k.addresses.IPs() {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	node.Status.Addresses = append(node.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeHostName, Address: k.GetHostname()})
	return node, nil
}

// GetNodeConfig is how the node's control groups are laid out.
func (k *Kubelet) GetNodeConfig() cm.NodeConfig {
	if in := k.face.injected; in != nil && in.ContainerManager != nil {
		return in.ContainerManager.GetNodeConfig()
	}
	return cm.NodeConfig{
		KubeletCgroupsName: k.face.configuration.KubeletCgroups, SystemCgroupsName: k.face.configuration.SystemCgroups,
		CgroupRoot: k.cfg.CgroupRoot, CgroupDriver: string(k.cgroups.Driver()), CgroupsPerQOS: true, PodPidsLimit: k.cfg.PodPidsLimit,
		KubeReserved: k.cfg.KubeReserved, SystemReserved: k.cfg.SystemReserved,
	}
}

// GetClusterDNS are the name servers and the search domains of the Pod.
func (k *Kubelet) GetClusterDNS(pod *corev1.Pod) ([]string, []string, error) {
	dns := k.dns()
	config, warnings, err := dns.ForPod(pod)
	if err != nil {
		return nil, nil, err
	}
	for _, w := range warnings {
		k.deps.Recorder.Event(pod, corev1.EventTypeWarning, w.Reason, w.Message)
	}
	return config.GetServers(), config.GetSearches(), nil
}

// GeneratePodHostNameAndDomain are the Pod's hostname, and its domain if it has one.
func (k *Kubelet) GeneratePodHostNameAndDomain(pod *corev1.Pod) (string, string, error) {
	return network.Hostname(pod, k.cfg.ClusterDomain)
}

// GetExtraSupplementalGroupsForPod are the groups that the Pod's PersistentVolumes belong to, but for those that the
// Pod asks for itself.
func (k *Kubelet) GetExtraSupplementalGroupsForPod(pod *corev1.Pod) []int64 {
	var own, extra []int64
	if pod.Spec.SecurityContext != nil {
		own = pod.Spec.SecurityContext.SupplementalGroups
	}
	for _, mounted := range k.volumes.Volumes(pod.UID) {
		if mounted.Spec.PV == nil {
			continue
		}
		group, err := strconv.ParseInt(mounted.Spec.PV.Annotations[supplementalGroupAnnotation], 10, 64)
		if err != nil || slices.Contains(own, group) || slices.Contains(extra, group) {
			continue
		}
		extra = append(extra, group)
	}
	slices.Sort(extra)
	return extra
}

// ResyncInterval is how often a Pod is looked at to which nothing happens.
func (k *Kubelet) ResyncInterval() time.Duration {
	if d := k.face.configuration.SyncFrequency.Duration; d > 0 {
		return d
	}
	return defaultSyncFrequency
}

// StreamingConnectionIdleTimeout is how long a stream to a container may be idle.
func (k *Kubelet) StreamingConnectionIdleTimeout() time.Duration {
	if d := k.face.configuration.StreamingConnectionIdleTimeout.Duration; d > 0 {
		return d
	}
	return defaultStreamIdle
}

// GenerateRunContainerOptions is what the container would be started with now.
func (k *Kubelet) GenerateRunContainerOptions(pod *corev1.Pod, c *corev1.Container, podIP string,
) (*container.RunContainerOptions, error) {
	if pod == nil || c == nil {
		return nil, errors.New("generate container options: needs a pod and a container")
	}
	return k.containerOptions(pod, c, podIP)
}
