package up

import (
	"fmt"
	"net/netip"
	"strings"
)

// parseAddresses parses an IPv4 address and, after a comma, an optional IPv6 address, which is invalid without one.
func parseAddresses(text string) (v4, v6 netip.Addr, err error) {
	first, second, both := strings.Cut(text, ",")
	if v4, err = netip.ParseAddr(first); err != nil || !v4.Is4() {
		return v4, v6, fmt.Errorf("%q: not an IPv4 address of this machine, or one with a comma and an IPv6 address", text)
	}
	if !both {
		return v4, v6, nil
	}
	if v6, err = netip.ParseAddr(second); err != nil || !v6.Is6() || v6.Is4In6() {
		return v4, v6, fmt.Errorf("%q: after the IPv4 address comes an IPv6 address of this machine", text)
	}
	return v4, v6, nil
}

// validateAPIAddress checks the addresses by which other machines reach this one.
func (c Config) validateAPIAddress(pods, services networks) error {
	if c.APIAddress == "" {
		return nil
	}
	v4, v6, err := parseAddresses(c.APIAddress)
	if err != nil {
		return fmt.Errorf("--api-address %w", err)
	}
	if v6.IsValid() && pods.v4.IsValid() && !pods.v6.IsValid() {
		return fmt.Errorf("--api-address %s: the cluster has no IPv6 (--pod-cidr %s): omit %s", c.APIAddress, c.PodCIDR, v6)
	}
	for _, address := range []netip.Addr{v4, v6} {
		if !address.IsValid() {
			continue
		}
		if address.IsUnspecified() || address.IsLoopback() || address.IsMulticast() || address.Is6() && address.IsLinkLocalUnicast() {
			return fmt.Errorf("--api-address %s: name one address of this machine that other machines reach", address)
		}
		for _, network := range append(pods.list(), services.list()...) {
			if network.IsValid() && network.Contains(address) {
				return fmt.Errorf("--api-address %s is in --pod-cidr %s or --service-cidr %s: choose ranges apart", address, c.PodCIDR, c.ServiceCIDR)
			}
		}
	}
	return nil
}

// gateways are the addresses of the pod bridge.
func (l Layout) gateways() []netip.Addr {
	if l.Gateway6.IsValid() {
		return []netip.Addr{l.Gateway, l.Gateway6}
	}
	return []netip.Addr{l.Gateway}
}

// NodeIP is the Node's address.
func (l Layout) NodeIP() netip.Addr {
	if address, _, err := parseAddresses(l.APIAddress); err == nil {
		return address
	}
	return l.Gateway
}

// NodeIP6 is the Node's IPv6 address; invalid in a cluster without IPv6.
func (l Layout) NodeIP6() netip.Addr {
	if address := l.apiAddress6(); address.IsValid() {
		return address
	}
	return l.Gateway6
}

// apiAddress6 is the IPv6 address by which other machines reach this one; invalid if there is none.
func (l Layout) apiAddress6() netip.Addr {
	_, address, err := parseAddresses(l.APIAddress)
	if err != nil {
		return netip.Addr{}
	}
	return address
}

// joinAddresses returns the addresses with spaces between them.
func joinAddresses(addresses []netip.Addr) string {
	texts := make([]string, len(addresses))
	for i, address := range addresses {
		texts[i] = address.String()
	}
	return strings.Join(texts, " ")
}
