package isolate

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/routes"
)

// pools are the networks from which links get their addresses: the one for benchmarks (RFC 2544) and the one of carriers
// (RFC 6598), which local networks do not use.
var pools = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("100.64.0.0/10")}

const (
	// linkBits is the length of a link's prefix: two addresses, that of the network and the one for broadcasts.
	linkBits = 30
	// maxCandidates bounds how many networks of a pool are tried.
	maxCandidates = 4096
	// insideInterface is the link's name in the cluster's network namespace.
	insideInterface = "eth0"
	forwarding      = "/proc/sys/net/ipv4/ip_forward"
)

// link is the connection of the cluster's network namespace with the machine's.
type link struct {
	name            string
	outside, inside netip.Addr
	// claim keeps the addresses from other clusters that start at the same time.
	claim net.Listener
	// masquerade owns the machine's rules for the link; nil before they exist.
	masquerade *masquerade
	relays     []*relay
	running    sync.WaitGroup // the relays
}

// claimLink chooses addresses that neither the machine nor another cluster uses.
func (c Config) claimLink() (*link, error) {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(c.Link)) // the same cluster gets the same addresses if they are free
	for _, pool := range pools {
		count := 1 << (linkBits - pool.Bits())
		for i := range min(count, maxCandidates) {
			network := candidate(pool, (int(hash.Sum32()%uint32(count))+i)%count)
			found, err := c.tryLink(network)
			if found != nil || err != nil {
				return found, err
			}
		}
	}
	return nil, fmt.Errorf("no addresses for the cluster's link to the machine are free in %v: remove routes to these networks", pools)
}

// candidate returns the index'th network for a link.
func candidate(pool netip.Prefix, index int) netip.Prefix {
	base := pool.Addr().As4()
	number := uint32(base[0])<<24 | uint32(base[1])<<16 | uint32(base[2])<<8 | uint32(base[3])
	number += uint32(index) << (32 - linkBits)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(number >> 24), byte(number >> 16), byte(number >> 8), byte(number)}), linkBits)
}

// tryLink claims a network; nil if it is in use.
func (c Config) tryLink(network netip.Prefix) (*link, error) {
	if slices.ContainsFunc(c.Avoid, network.Overlaps) {
		return nil, nil
	}
	// The kernel releases the name, which is one of the network namespace, when this process ends. Routes are checked afterwards:
	// a cluster that claimed it before has its routes by now.
	claim, err := net.Listen("unix", "@berth-link-"+network.Addr().String())
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim %s for the cluster's link: %w", network, err)
	}
	used, err := routes.List()
	if err != nil {
		return nil, errors.Join(err, claim.Close())
	}
	for _, route := range used {
		if route.Network.Overlaps(network) && route.Interface != c.Link {
			return nil, claim.Close()
		}
	}
	return &link{name: c.Link, outside: network.Addr().Next(), inside: network.Addr().Next().Next(), claim: claim}, nil
}

// create creates the veth pair with its inner end in the namespaces of the process, and the machine's rules for it.
func (l *link) create(pid int) error {
	// The network namespace of an earlier run ends some time after its last process.
	if err := l.remove(); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.name
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: insideInterface, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create the cluster's link %s: %w", l.name, err)
	}
	// Nothing but IPv4 uses the link; without this each end sends its own advertisements.
	ignoreIPv6(l.name)
	if err := configure(l.name, l.outside); err != nil {
		return err
	}
	err := inNetwork(pid, func() error {
		if err := configure("lo", netip.Addr{}); err != nil {
			return err
		}
		if err := configure(insideInterface, l.inside); err != nil {
			return err
		}
		return defaultRoute(insideInterface, l.outside)
	})
	if err != nil {
		return err
	}
	if err := enableForwarding(); err != nil {
		return err
	}
	l.masquerade, err = newMasquerade(l.name, l.inside)
	return err
}

// configure sets the address of an interface, if it is valid, and brings the interface up.
func configure(name string, address netip.Addr) error {
	found, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up the network interface %s: %w", name, err)
	}
	if address.IsValid() {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(linkBits, 32)}}
		if err := netlink.AddrReplace(found, addr); err != nil {
			return fmt.Errorf("set the address of %s to %s: %w", name, address, err)
		}
	}
	if err := netlink.LinkSetUp(found); err != nil {
		return fmt.Errorf("bring up the network interface %s: %w", name, err)
	}
	return nil
}

func defaultRoute(name string, gateway netip.Addr) error {
	found, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up the network interface %s: %w", name, err)
	}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: found.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("set the cluster's default route: %w", err)
	}
	return nil
}

func ignoreIPv6(name string) {
	// A kernel without IPv6 has no such file.
	_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6"), []byte("1"), 0o644)
}

// enableForwarding lets the machine forward packets, if it does not yet, and says so. It stays enabled: other programs may
// depend on it by the time the cluster ends.
func enableForwarding() error {
	if data, err := os.ReadFile(forwarding); err == nil && strings.TrimSpace(string(data)) == "1" {
		return nil
	}
	if err := os.WriteFile(forwarding, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("enable IP forwarding (%s), which the cluster needs to reach other networks: %w", forwarding, err)
	}
	log("enabled IP forwarding (sysctl net.ipv4.ip_forward), which the cluster needs to reach other networks; it stays enabled")
	return nil
}

// remove removes the veth pair; a missing one is no error. The kernel does the same when the namespace ends, but later.
func (l *link) remove() error {
	found, err := netlink.LinkByName(l.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(found)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove the cluster's link %s: %w", l.name, err)
	}
	return nil
}

// relay relays DNS requests to the name servers.
func (l *link) relay(ctx context.Context, pid int, servers []netip.Addr) (err error) {
	l.relays, err = listenInside(ctx, pid, servers)
	for _, relay := range l.relays {
		l.running.Go(func() { relay.run(ctx) })
	}
	return err
}

// close releases the addresses, removes the machine's rules and ends the relays.
func (l *link) close() {
	for _, relay := range l.relays {
		relay.close()
	}
	l.running.Wait()
	_ = l.claim.Close()
	if l.masquerade != nil {
		l.masquerade.close()
	}
}
