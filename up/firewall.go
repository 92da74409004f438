package up

import (
	"context"

	"github.com/berth-dev/berth/internal/iptables"
	"github.com/berth-dev/berth/up/firewall"
)

// firewallName is the name of what lets the packets of Pods pass the machine's firewall, among the components.
const firewallName = "firewall"

// newFirewall returns the component that lets the packets of Pods pass a firewall of the machine that drops the unknown.
func (c *Cluster) newFirewall() (runFunc, error) {
	if c.config.Inside != nil {
		// No other program has rules in these namespaces. On the machine package isolate has them for the link.
		return func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
	}
	pods := firewall.Interface{Name: c.Bridge(), IPv6: c.Pods6.IsValid(), TCP: []int{kubeletPort}}
	if c.config.Member == nil {
		pods.TCP = append(pods.TCP, c.APIPort)
		if c.runs(dnsName) {
			pods.TCP, pods.UDP = append(pods.TCP, dnsPort), append(pods.UDP, dnsPort)
		}
	}
	return func(ctx context.Context) error {
		return pods.Keep(ctx, iptables.Deps{Clock: c.clock, Logger: c.logger})
	}, nil
}

// removeFirewallRules removes the rules of newFirewall, and those of an isolated cluster for its link.
func (l Layout) removeFirewallRules(ctx context.Context) error {
	return firewall.Remove(ctx, l.Bridge())
}
