package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/reconcile"
)

// assignment is what a Service is to get.
type assignment struct {
	addresses []netip.Addr
	// announcer is the node that has the address of a range; empty if there is none.
	announcer string
	// problem says why there are no addresses; nil if there are.
	problem *problem
}

// problem is the reason for a Service without addresses.
type problem struct {
	reason, message string
	// mayEndSilently is set if no event says when it ends.
	mayEndSilently bool
}

// assign returns what the Service is to get.
func (c *Controller) assign(key reconcile.Request, service *corev1.Service) (assignment, error) {
	nodes, err := c.candidates(service)
	if err != nil {
		return assignment{}, err
	}
	if c.config.CIDR.IsValid() {
		return c.assignFromRange(key, service, nodes), nil
	}
	return c.assignNodes(key, service, nodes), nil
}

// assignFromRange keeps the address that the Service has, or gives it one.
func (c *Controller) assignFromRange(key reconcile.Request, service *corev1.Service, nodes []*corev1.Node) assignment {
	address, problem := c.addressFromRange(key, service)
	if problem != nil {
		return assignment{problem: problem}
	}
	return assignment{addresses: []netip.Addr{address}, announcer: c.chooseAnnouncer(service, nodes)}
}

func (c *Controller) addressFromRange(key reconcile.Request, service *corev1.Service) (netip.Addr, *problem) {
	if requested := service.Spec.LoadBalancerIP; requested != "" {
		address, err := netip.ParseAddr(requested)
		if err != nil || !c.config.CIDR.Contains(address) {
			return netip.Addr{}, &problem{reason: ReasonAddressUnavailable, message: fmt.Sprintf(
				"spec.loadBalancerIP %s is not in --load-balancer-cidr %s", requested, c.config.CIDR)}
		}
		if owner, taken := c.held.ownerOfAddress(key, address); taken {
			return netip.Addr{}, &problem{reason: ReasonAddressUnavailable, message: fmt.Sprintf(
				"spec.loadBalancerIP %s is the address of Service %s", requested, owner)}
		}
		return address, nil
	}
	for _, address := range c.held[key].addresses {
		if _, taken := c.held.ownerOfAddress(key, address); c.config.CIDR.Contains(address) && !taken {
			return address, nil
		}
	}
	address, ok := c.held.free(key, c.config.CIDR)
	if !ok {
		return netip.Addr{}, &problem{reason: ReasonAddressUnavailable, message: fmt.Sprintf(
			"all addresses of --load-balancer-cidr %s belong to other Services: delete one, or start berth up with a wider range", c.config.CIDR)}
	}
	return address, nil
}

// chooseAnnouncer returns the node that has the Service's address: the one that has it, if it still can, else the
// cluster's first node, else any.
func (c *Controller) chooseAnnouncer(service *corev1.Service, nodes []*corev1.Node) string {
	for _, name := range []string{service.Annotations[AnnouncedByAnnotation], c.config.FirstNode} {
		if slices.ContainsFunc(nodes, func(node *corev1.Node) bool { return node.Name == name }) {
			return name
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	return nodes[0].Name
}

// assignNodes gives the Service the addresses of the nodes, if its ports are free there.
func (c *Controller) assignNodes(key reconcile.Request, service *corev1.Service, nodes []*corev1.Node) assignment {
	var addresses []netip.Addr
	for _, node := range nodes {
		for _, address := range node.Status.Addresses {
			if ip, err := netip.ParseAddr(address.Address); err == nil && address.Type == corev1.NodeInternalIP && ip.Is4() {
				addresses = append(addresses, ip)
			}
		}
	}
	if requested := service.Spec.LoadBalancerIP; requested != "" {
		addresses = slices.DeleteFunc(addresses, func(a netip.Addr) bool { return a.String() != requested })
		if len(addresses) == 0 {
			return assignment{problem: &problem{reason: ReasonAddressUnavailable, message: fmt.Sprintf(
				"spec.loadBalancerIP %s is not the address of a node that can serve: omit it, or start berth up with --load-balancer-cidr", requested)}}
		}
	}
	if len(addresses) == 0 {
		return assignment{problem: &problem{reason: ReasonAddressUnavailable, message: "no node can serve: none is ready, or, with " +
			"externalTrafficPolicy Local, none has a ready endpoint"}}
	}
	const advice = "choose another port, or start berth up with --load-balancer-cidr, which gives each Service an address of its own"
	if owner, taken, ok := c.held.ownerOfPort(key, addresses, portsOf(service)); ok {
		return assignment{problem: &problem{reason: ReasonPortTaken, message: fmt.Sprintf(
			"port %s of the nodes belongs to Service %s: %s", taken, owner, advice)}}
	}
	for _, p := range portsOf(service) {
		if slices.Contains(c.held[key].ports, p) && len(c.held[key].addresses) > 0 {
			continue // it has the port: what listens there now came later
		}
		for _, address := range addresses {
			if owner := c.deps.PortOwner(address, p.protocol, p.number); owner != "" {
				return assignment{problem: &problem{reason: ReasonPortTaken, mayEndSilently: true, message: fmt.Sprintf(
					"port %s of the node's address %s is in use by %s: %s", p, address, owner, advice)}}
			}
		}
	}
	return assignment{addresses: addresses}
}

// candidates returns the nodes at whose addresses the Service can be served, sorted by name.
func (c *Controller) candidates(service *corev1.Service) ([]*corev1.Node, error) {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	var local map[string]bool
	if service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		if local, err = c.endpoints.nodesOf(service); err != nil {
			return nil, err
		}
	}
	var nodes []*corev1.Node
	for _, node := range all {
		if _, excluded := node.Labels[corev1.LabelNodeExcludeBalancers]; excluded || !isReady(node) || local != nil && !local[node.Name] {
			continue
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
