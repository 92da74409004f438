// Package routes lists the networks that this machine has routes to.
package routes

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Route is a network with the interface that leads to it.
type Route struct {
	Network   netip.Prefix
	Interface string
	// Protocol is what has added the route, RTPROT_… of rtnetlink(7).
	Protocol int
}

// minBits is the length of the shortest prefix that names a network: VPNs split the default route into shorter ones.
const minBits = 8

// List returns the unicast routes of all tables, without default routes. It includes the addresses of this machine.
func List() ([]Route, error) {
	names, err := interfaceNames()
	if err != nil {
		return nil, err
	}
	var found []Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := RetryInterrupted(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list the machine's routes: %w", err)
		}
		for _, route := range all {
			if network, ok := networkOf(route); ok {
				found = append(found, Route{Network: network, Interface: names[route.LinkIndex], Protocol: int(route.Protocol)})
			}
		}
	}
	return found, nil
}

// networkOf returns the network that a route leads to.
func networkOf(route netlink.Route) (netip.Prefix, bool) {
	if route.Dst == nil || route.Type != unix.RTN_UNICAST && route.Type != unix.RTN_LOCAL {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(route.Dst.IP)
	bits, size := route.Dst.Mask.Size()
	if size == 32 {
		addr = addr.Unmap()
	}
	if !ok || bits < minBits || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, bits).Masked(), true
}

func interfaceNames() (map[int]string, error) {
	links, err := RetryInterrupted(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	names := make(map[int]string)
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	return names, nil
}

// RetryInterrupted repeats a netlink listing that was interrupted by a change, such as an interface of another cluster's
// Pod.
func RetryInterrupted[T any](list func() ([]T, error)) ([]T, error) {
	const maxAttempts = 50
	for range maxAttempts - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}
