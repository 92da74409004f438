package up

import (
	"errors"

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
	pods, services, networksErr := c.networks()
	info := join.Info{
		Node: c.NodeName, PodCIDR: pods.v4, ServiceCIDR: services.v4, ClusterDomain: clusterDomain, Proxy: c.runs(proxyName),
		LoadBalancers: c.loadBalancers(), PodCIDR6: pods.v6, ServiceCIDR6: services.v6, Address6: c.apiAddress6(),
	}
	if networksErr != nil || !c.runs(dnsName) {
		return info, networksErr
	}
	addresses, err := c.dnsServiceAddresses()
	if err != nil {
		return info, err
	}
	info.DNSService, info.DNSServer = addresses[0], c.Gateway
	return info, nil
}

// newPodRoutes returns the component that adds routes to the Pods of other nodes.
func (c *Cluster) newPodRoutes() (runFunc, error) {
	network, networkErr := c.networkClient()
	node, nodeErr := c.nodeClient()
	pods, err := parsePodNetworks(c.PodCIDR)
	if err := errors.Join(networkErr, nodeErr, err); err != nil {
		return nil, err
	}
	controller, err := podroutes.New(podroutes.Deps{Client: network, NodeClient: node, Logger: c.logger, Clock: c.clock},
		podroutes.Config{NodeName: c.NodeName, PodCIDRs: pods.list(), Joined: c.config.Member != nil, ForeignNetwork: c.ExternalRuntime})
	if err != nil {
		return nil, err
	}
	return controller.Start, nil
}

// removePodRoutes removes the routes to the Pods of other nodes. Without a data directory the range is unknown; the routes
// are harmless then, because nothing has addresses of the range any more.
func (l Layout) removePodRoutes() error {
	pods, err := parsePodNetworks(l.PodCIDR)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	return podroutes.Remove(pods.list()...)
}

// newApprover returns the component that approves certificates of nodes.
func (c *Cluster) newApprover() (runFunc, error) {
	client, err := c.client("approver")
	if err != nil {
		return nil, err
	}
	services, err := parseServiceNetworks(c.ServiceCIDR)
	if err != nil {
		return nil, err
	}
	controller, err := csrapproval.New(csrapproval.Deps{
		Client: client, Logger: c.logger, Clock: c.clock, Registerer: c.controllerMetrics.New(approverName),
	}, csrapproval.Config{Services: services.list()})
	if err != nil {
		return nil, err
	}
	return controller.Start, nil
}
