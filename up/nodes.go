package up

import (
	"errors"
	"net/netip"

	"github.com/berth-dev/berth/csrapproval"
	"github.com/berth-dev/berth/kubelet/podroutes"
	"github.com/berth-dev/berth/up/join"
)

// Components that several machines of one cluster need.
const (
	// routesName is the component that adds routes to the Pods of other nodes.
	routesName = "pod-routes"
	// approverName is the component that approves certificates of nodes.
	approverName = "csr-approver"
)

// info is what this cluster says about itself to nodes that join.
func (c *Cluster) info() (join.Info, error) {
	pods, podsErr := netip.ParsePrefix(c.PodCIDR)
	services, servicesErr := netip.ParsePrefix(c.ServiceCIDR)
	info := join.Info{
		Node: c.NodeName, PodCIDR: pods, ServiceCIDR: services, ClusterDomain: clusterDomain, Proxy: c.runs(proxyName),
		LoadBalancers: c.loadBalancers(),
	}
	if err := errors.Join(podsErr, servicesErr); err != nil || !c.runs(dnsName) {
		return info, err
	}
	var err error
	info.DNSService, err = c.dnsServiceAddress()
	info.DNSServer = c.Gateway
	return info, err
}

// newPodRoutes returns the component that adds routes to the Pods of other nodes.
func (c *Cluster) newPodRoutes() (runFunc, error) {
	network, networkErr := c.networkClient()
	node, nodeErr := c.nodeClient()
	pods, err := netip.ParsePrefix(c.PodCIDR)
	if err := errors.Join(networkErr, nodeErr, err); err != nil {
		return nil, err
	}
	controller, err := podroutes.New(podroutes.Deps{Client: network, NodeClient: node, Logger: c.logger, Clock: c.clock},
		podroutes.Config{NodeName: c.NodeName, PodCIDR: pods, Joined: c.config.Member != nil, ForeignNetwork: c.ExternalRuntime})
	if err != nil {
		return nil, err
	}
	return controller.Start, nil
}

// removePodRoutes removes the routes to the Pods of other nodes. Without a data directory the range is unknown; the routes
// are harmless then, because nothing has addresses of the range any more.
func (l Layout) removePodRoutes() error {
	pods, err := netip.ParsePrefix(l.PodCIDR)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	return podroutes.Remove(pods)
}

// newApprover returns the component that approves certificates of nodes.
func (c *Cluster) newApprover() (runFunc, error) {
	client, err := c.client("approver")
	if err != nil {
		return nil, err
	}
	controller, err := csrapproval.New(csrapproval.Deps{
		Client: client, Logger: c.logger, Clock: c.clock, Registerer: c.controllerMetrics.New(approverName),
	})
	if err != nil {
		return nil, err
	}
	return controller.Start, nil
}
