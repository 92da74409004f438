package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/reconcile"
)

// port is one port of an address.
type port struct {
	protocol corev1.Protocol
	number   int32
}

func (p port) String() string { return fmt.Sprintf("%d/%s", p.number, p.protocol) }

// portsOf returns the ports of the Service.
func portsOf(service *corev1.Service) []port {
	ports := make([]port, 0, len(service.Spec.Ports))
	for _, p := range service.Spec.Ports {
		ports = append(ports, port{p.Protocol, p.Port})
	}
	return ports
}

// holding is what a Service has: addresses, and its ports of them.
type holding struct {
	addresses []netip.Addr
	ports     []port
}

// holdings are those of all Services. Only the controller's one worker uses them: they have its last writes, which the
// cache may not show yet.
type holdings map[reconcile.Request]holding

// holdingOf returns what the Service's status says.
func holdingOf(service *corev1.Service) holding {
	h := holding{ports: portsOf(service)}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if address, err := netip.ParseAddr(ingress.IP); err == nil {
			h.addresses = append(h.addresses, address)
		}
	}
	return h
}

// ownerOfPort returns another Service that has one of the ports of one of the addresses.
func (all holdings) ownerOfPort(self reconcile.Request, addresses []netip.Addr, ports []port) (owner reconcile.Request, taken port, ok bool) {
	for key, h := range all {
		if key == self || !slices.ContainsFunc(h.addresses, func(a netip.Addr) bool { return slices.Contains(addresses, a) }) {
			continue
		}
		for _, p := range ports {
			if slices.Contains(h.ports, p) && (!ok || key.String() < owner.String()) {
				owner, taken, ok = key, p, true
			}
		}
	}
	return owner, taken, ok
}

// ownerOfAddress returns another Service that has the address.
func (all holdings) ownerOfAddress(self reconcile.Request, address netip.Addr) (owner reconcile.Request, ok bool) {
	for key, h := range all {
		if key != self && slices.Contains(h.addresses, address) {
			return key, true
		}
	}
	return reconcile.Request{}, false
}

// free returns the first address of the range that no Service has.
func (all holdings) free(self reconcile.Request, within netip.Prefix) (netip.Addr, bool) {
	used := make(map[netip.Addr]bool)
	for key, h := range all {
		if key == self {
			continue
		}
		for _, address := range h.addresses {
			used[address] = true
		}
	}
	for address := within.Addr(); within.Contains(address); address = address.Next() {
		if !used[address] {
			return address, true
		}
	}
	return netip.Addr{}, false
}
