package kubelet

import (
	"time"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/packetfilter"
	"github.com/berth-dev/berth/kubelet/util/iptables"
)

const (
	// ContainerLogsDir has a link to each container's log, whose name has that of the Pod.
	ContainerLogsDir = agent.ContainerLogsDir
	// MaxContainerBackOff is the longest wait of a crash loop.
	MaxContainerBackOff = 300 * time.Second
	// ContainerGCPeriod is how often containers are garbage-collected.
	ContainerGCPeriod = time.Minute
	// ImageGCPeriod is how often images are garbage-collected.
	ImageGCPeriod = 5 * time.Minute
)

// The chains of the node's packet filter that Kubernetes has names for. The kubelet makes KubeFirewallChain, and those of
// package packetfilter, with makeIPTablesUtilChains; the others are kube-proxy's since Kubernetes 1.28.
const (
	// KubeMarkMasqChain marks packets that are to leave with the node's address.
	KubeMarkMasqChain iptables.Chain = "KUBE-MARK-MASQ"
	// KubeMarkDropChain marks packets that are to be dropped.
	KubeMarkDropChain iptables.Chain = "KUBE-MARK-DROP"
	// KubePostroutingChain gives marked packets the node's address.
	KubePostroutingChain iptables.Chain = "KUBE-POSTROUTING"
	// KubeFirewallChain drops packets for the node's loopback addresses that come from elsewhere.
	KubeFirewallChain iptables.Chain = packetfilter.FirewallChain
)
