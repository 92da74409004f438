package daemon

import (
	"log/slog"
	"net"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/certificate"
)

// cloudNames has the serving certificate of a Node name the addresses that its cloud's controller manager sets, external ones among them, and
// requests none before there is an IP: whoever approves the requests compares them with the Node.
type cloudNames struct {
	set    func(names []string, ips []net.IP) error
	start  func() // starts to request
	logger *slog.Logger

	mu      sync.Mutex // guards all below
	started bool
	names   []string
	ips     []net.IP
}

// update takes a new state of the Node.
func (c *cloudNames) update(node *corev1.Node) {
	names, ips := certificate.NamesOf(node.Status.Addresses)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(ips) == 0 || slices.Equal(names, c.names) && slices.EqualFunc(ips, c.ips, net.IP.Equal) {
		return
	}
	if err := c.set(names, ips); err != nil {
		c.logger.Error("serving certificate does not cover the node's current addresses", "names", names, "addresses", ips, "error", err)
		return
	}
	c.names, c.ips = names, ips
	if !c.started {
		c.started = true
		c.start()
	}
}
