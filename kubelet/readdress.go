package kubelet

import (
	"context"
	"net"

	"github.com/berth-dev/berth/kubelet/nodeaddress"
)

// followAddresses keeps the node's addresses true until ctx ends, if they were not given for good.
func (k *Kubelet) followAddresses(ctx context.Context) error {
	if k.deps.FindIPs == nil {
		return nil
	}
	follower, err := nodeaddress.New(nodeaddress.Deps{
		Store: k.addresses, Find: k.deps.FindIPs, OnChange: k.readdressed, Clock: k.deps.Clock,
		Logger: k.deps.Logger.With("room", "addresses"),
	})
	if err != nil {
		return err
	}
	return follower.Start(ctx)
}

// readdressed has everything follow that says where the node is: first it can be reached there, then it is told.
func (k *Kubelet) readdressed(now []net.IP) {
	if k.server != nil {
		k.server.SetAddresses(k.cfg.Server.at(k.cfg.NodeIPs[0], now[0]))
	}
	if k.deps.Readdressed != nil {
		k.deps.Readdressed(now)
	}
	k.node.SetIPs(now)
	for _, pod := range k.workers.Pods() {
		k.workers.Wake(pod.UID) // its status has the node's address
	}
}

// at are the addresses to listen on where those of before are now those of now. The others stay.
func (c *ServerConfig) at(before, now net.IP) []string {
	moved := make([]string, 0, len(c.Addresses))
	for _, address := range c.Addresses {
		if host, port, err := net.SplitHostPort(address); err == nil && before.Equal(net.ParseIP(host)) {
			address = net.JoinHostPort(now.String(), port)
		}
		moved = append(moved, address)
	}
	return moved
}
