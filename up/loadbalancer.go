package up

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/loadbalancer"
	"github.com/berth-dev/berth/loadbalancer/announce"
)

const (
	// loadBalancerName is the component that gives Services of type LoadBalancer their addresses, announcerName the one that
	// adds those of --load-balancer-cidr to a machine's interface.
	loadBalancerName = loadbalancer.Name
	announcerName    = announce.Name
)

// loadBalancers returns the range of the addresses of Services; invalid if they get the nodes' addresses.
func (l Layout) loadBalancers() netip.Prefix {
	prefix, _ := netip.ParsePrefix(l.LoadBalancerCIDR)
	return prefix
}

// newLoadBalancer returns the controller that gives Services of type LoadBalancer their addresses.
func (c *Cluster) newLoadBalancer() (runFunc, error) {
	client, err := c.client(loadBalancerName)
	if err != nil {
		return nil, err
	}
	controller, err := loadbalancer.New(loadbalancer.Deps{
		Client: client, PortOwner: listenerOn, Logger: c.logger, Clock: c.clock, Registerer: c.controllerMetrics.New(loadBalancerName),
	}, loadbalancer.Config{CIDR: c.loadBalancers(), FirstNode: c.NodeName})
	if err != nil {
		return nil, err
	}
	return controller.Start, nil
}

// newAnnouncer returns the component that adds the addresses of Services to this machine's interface. Without a range of
// addresses it has nothing to do.
func (c *Cluster) newAnnouncer() (runFunc, error) {
	addresses := c.loadBalancers()
	if c.config.Member != nil {
		addresses = c.config.Member.Info.LoadBalancers
	}
	if !addresses.IsValid() {
		return func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, nil
	}
	client, err := c.networkClient()
	if err != nil {
		return nil, err
	}
	controller, err := announce.New(announce.Deps{Client: client, NodeIP: c.NodeIP, Logger: c.logger, Clock: c.clock},
		announce.Config{NodeName: c.NodeName, CIDR: addresses})
	if err != nil {
		return nil, err
	}
	return controller.Start, nil
}

// removeAddresses removes the addresses of Services from this machine.
func (l Layout) removeAddresses() error {
	if !l.loadBalancers().IsValid() {
		return nil
	}
	return announce.Remove(l.loadBalancers(), l.NodeIP())
}

// listenerOn names the program that listens on the port of this machine's address; empty if none does, or if the address is
// of another machine.
func listenerOn(address netip.Addr, protocol corev1.Protocol, port int32) string {
	hostPort := net.JoinHostPort(address.String(), strconv.Itoa(int(port)))
	var err error
	var listener interface{ Close() error }
	network := "tcp"
	switch protocol {
	case corev1.ProtocolTCP:
		listener, err = net.Listen("tcp4", hostPort)
	case corev1.ProtocolUDP:
		network = "udp"
		listener, err = net.ListenPacket("udp4", hostPort)
	default:
		return ""
	}
	if err == nil {
		_ = listener.Close()
		return ""
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return "" // it is not this machine's address
	}
	return portOwner(network, uint16(port))
}
