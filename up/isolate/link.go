package isolate

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/ipforward"
	"github.com/berth-dev/berth/internal/iptables"
	"github.com/berth-dev/berth/internal/routes"
	"github.com/berth-dev/berth/up/firewall"
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
)

// link is the connection of the cluster's network namespace with the machine's.
type link struct {
	name            string
	outside, inside addresses
	// claim keeps the addresses from other clusters that start at the same time.
	claim net.Listener
	// masquerades own the machine's rules for the link, one for each family.
	masquerades []*masquerade
	relays      []*relay
	running     sync.WaitGroup // the relays, and what keeps the rules of passFirewall
	passes      bool           // the machine's firewall has rules of passFirewall
}

// addresses are those of one end of a link. V6 is invalid if the link has no IPv6.
type addresses struct {
	V4 netip.Addr `json:"v4"`
	V6 netip.Addr `json:"v6"`
}

// prefixes returns the addresses with the lengths of the link's networks.
func (a addresses) prefixes() []netip.Prefix {
	all := []netip.Prefix{netip.PrefixFrom(a.V4, linkBits)}
	if a.V6.IsValid() {
		all = append(all, netip.PrefixFrom(a.V6, linkBits+pool6Bits))
	}
	return all
}

// pool6Bits is the length of the network from which links get their IPv6 addresses. The rest of an address is the IPv4 address
// of the same end, so that it is no other cluster's.
const pool6Bits = 96

// address6 returns the IPv6 address of the end of a link that has the IPv4 address: a unique local one (RFC 4193).
func address6(v4 netip.Addr) netip.Addr {
	all := [16]byte{0xfd, 'b', 'e', 'r', 't', 'h'}
	copy(all[pool6Bits/8:], v4.AsSlice())
	return netip.AddrFrom16(all)
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
	network6 := netip.PrefixFrom(address6(network.Addr()), linkBits+pool6Bits)
	if slices.ContainsFunc(c.Avoid, func(avoid netip.Prefix) bool { return network.Overlaps(avoid) || network6.Overlaps(avoid) }) {
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
		if (route.Network.Overlaps(network) || route.Network.Overlaps(network6)) && route.Interface != c.Link {
			return nil, claim.Close()
		}
	}
	found := &link{name: c.Link, outside: addresses{V4: network.Addr().Next()}, inside: addresses{V4: network.Addr().Next().Next()}, claim: claim}
	if c.IPv6 {
		found.outside.V6, found.inside.V6 = address6(found.outside.V4), address6(found.inside.V4)
	}
	return found, nil
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
	if !l.inside.V6.IsValid() {
		ignoreIPv6(l.name) // without this each end sends its own advertisements
	}
	if err := configure(l.name, l.outside.prefixes()); err != nil {
		return err
	}
	err := inNetwork(pid, func() error {
		if err := configure("lo", nil); err != nil {
			return err
		}
		if err := configure(insideInterface, l.inside.prefixes()); err != nil {
			return err
		}
		return defaultRoutes(insideInterface, l.outside)
	})
	if err != nil {
		return err
	}
	return l.translate()
}

// translate makes the machine forward what comes from the link, with its own addresses.
func (l *link) translate() error {
	for _, inside := range []netip.Addr{l.inside.V4, l.inside.V6} {
		if !inside.IsValid() {
			continue
		}
		if err := enableForwarding(inside); err != nil {
			return err
		}
		rules, err := newMasquerade(l.name, inside)
		if err != nil {
			return err
		}
		l.masquerades = append(l.masquerades, rules)
	}
	return nil
}

// passFirewall lets what comes from the link and leads to it pass a firewall of the machine that drops the unknown, until ctx ends.
func (l *link) passFirewall(ctx context.Context) {
	l.passes = true
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	l.running.Go(contained("isolate.passFirewall", func() {
		if err := (firewall.Interface{Name: l.name, IPv6: l.inside.V6.IsValid()}).Keep(ctx, iptables.Deps{Logger: logger}); err != nil {
			log("%v", err)
		}
	}))
}

// configure sets the addresses of an interface and brings the interface up.
func configure(name string, prefixes []netip.Prefix) error {
	found, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up the network interface %s: %w", name, err)
	}
	for _, prefix := range prefixes {
		address := prefix.Addr()
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(prefix.Bits(), address.BitLen())}}
		if address.Is6() {
			addr.Flags = unix.IFA_F_NODAD // both ends are the cluster's
		}
		if err := netlink.AddrReplace(found, addr); err != nil {
			return fmt.Errorf("set the address of %s to %s: %w", name, address, err)
		}
	}
	if err := netlink.LinkSetUp(found); err != nil {
		return fmt.Errorf("bring up the network interface %s: %w", name, err)
	}
	return nil
}

func defaultRoutes(name string, gateways addresses) error {
	found, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up the network interface %s: %w", name, err)
	}
	for _, gateway := range gateways.prefixes() {
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: found.Attrs().Index, Gw: gateway.Addr().AsSlice()}); err != nil {
			return fmt.Errorf("set the cluster's default route by %s: %w", gateway.Addr(), err)
		}
	}
	return nil
}

func ignoreIPv6(name string) {
	// A kernel without IPv6 has no such file.
	_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6"), []byte("1"), 0o644)
}

// enableForwarding lets the machine forward packets of an address's family, if it does not yet, and says so. It stays enabled: other
// programs may depend on it by the time the cluster ends.
func enableForwarding(address netip.Addr) error {
	changed, err := ipforward.Enable(address.Is6())
	if err != nil {
		return fmt.Errorf("the cluster needs it to reach other networks: %w", err)
	}
	if len(changed) > 0 {
		log("set %s, which the cluster needs to reach other networks; it stays so", strings.Join(changed, ", "))
	}
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
		l.running.Go(contained("isolate.relay", func() { relay.run(ctx) }))
	}
	return err
}

// close releases the addresses, removes the machine's rules and ends the relays. The context of what runs for the link has ended.
func (l *link) close(ctx context.Context) {
	for _, relay := range l.relays {
		relay.close()
	}
	l.running.Wait()
	if l.claim != nil {
		_ = l.claim.Close()
	}
	for _, rules := range l.masquerades {
		rules.close()
	}
	if !l.passes {
		return
	}
	if err := firewall.Remove(context.WithoutCancel(ctx), l.name); err != nil {
		log("%v", err)
	}
}
