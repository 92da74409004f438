package up

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// networks is a network of IPv4, and one of IPv6, which is invalid in a cluster without IPv6.
type networks struct{ v4, v6 netip.Prefix }

// list returns the valid ones.
func (n networks) list() []netip.Prefix {
	if n.v6.IsValid() {
		return []netip.Prefix{n.v4, n.v6}
	}
	return []netip.Prefix{n.v4}
}

// String returns the networks as the flags have them.
func (n networks) String() string {
	texts := make([]string, 0, 2)
	for _, network := range n.list() {
		texts = append(texts, network.String())
	}
	return strings.Join(texts, ",")
}

// networks returns the networks of the Pods and of the Services. An error names the flag to correct.
func (c Config) networks() (pods, services networks, err error) {
	pods, podsErr := parsePodNetworks(c.PodCIDR)
	services, servicesErr := parseServiceNetworks(c.ServiceCIDR)
	if err := errors.Join(podsErr, servicesErr); err != nil {
		return pods, services, err
	}
	if pods.v6.IsValid() != services.v6.IsValid() {
		return pods, services, fmt.Errorf("--pod-cidr %s and --service-cidr %s: give both an IPv6 network, or neither", c.PodCIDR, c.ServiceCIDR)
	}
	for _, pair := range [][2]netip.Prefix{{pods.v4, services.v4}, {pods.v6, services.v6}} {
		if pair[0].IsValid() && pair[0].Overlaps(pair[1]) {
			return pods, services, fmt.Errorf("--pod-cidr %s and --service-cidr %s overlap: choose ranges apart", pair[0], pair[1])
		}
	}
	return pods, services, nil
}

// parsePodNetworks parses --pod-cidr: the control plane divides an IPv6 network into at most 2^16 parts of nodes.
func parsePodNetworks(text string) (networks, error) {
	return parseNetworks("--pod-cidr", text, 24, [2]int{nodeBits6 - 16, 112})
}

// parseServiceNetworks parses --service-cidr: the API server accepts at most 2^20 addresses.
func parseServiceNetworks(text string) (networks, error) {
	return parseNetworks("--service-cidr", text, 28, [2]int{108, 123})
}

// parseNetworks parses an IPv4 network that is at least as wide as /narrowest, and an optional IPv6 network with a length
// between the two of range6.
func parseNetworks(flag, text string, narrowest int, range6 [2]int) (networks, error) {
	first, second, both := strings.Cut(text, ",")
	v4, err := ParseCIDR(flag, first, narrowest)
	if err != nil || !both {
		return networks{v4: v4}, err
	}
	v6, err := netip.ParsePrefix(second)
	switch {
	case err != nil || !v6.Addr().Is6() || v6.Addr().Is4In6():
		return networks{}, fmt.Errorf("%s %q: after an IPv4 network comes an IPv6 network such as fd00:85::/56", flag, text)
	case v6.Masked() != v6:
		return networks{}, fmt.Errorf("%s %q: has host bits set; did you mean %s,%s?", flag, text, v4, v6.Masked())
	case v6.Bits() < range6[0] || v6.Bits() > range6[1]:
		return networks{}, fmt.Errorf("%s %q: the IPv6 network has a length between /%d and /%d", flag, text, range6[0], range6[1])
	}
	return networks{v4, v6}, nil
}

// ParseCIDR parses an IPv4 prefix that is at least as wide as /narrowest. Its errors name the flag and what it accepts.
func ParseCIDR(flag, text string, narrowest int) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%s %q: not a network such as 10.85.0.0/16", flag, text)
	case !prefix.Addr().Is4():
		return netip.Prefix{}, fmt.Errorf("%s %q: an IPv4 network comes first", flag, text)
	case prefix.Masked() != prefix:
		return netip.Prefix{}, fmt.Errorf("%s %q: has host bits set; did you mean %s?", flag, text, prefix.Masked())
	case prefix.Bits() > narrowest:
		return netip.Prefix{}, fmt.Errorf("%s %q: too small, needs /%d or wider", flag, text, narrowest)
	}
	return prefix, nil
}
