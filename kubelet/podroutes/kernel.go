package podroutes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	machineroutes "github.com/berth-dev/berth/internal/routes"
	"github.com/berth-dev/berth/internal/rtnetlink"
)

// Protocol marks our routes (rtm_protocol of rtnetlink(7)): a number above RTPROT_STATIC that no routing daemon has.
const Protocol = 137

// route is the way to the Pods of one node.
type route struct {
	pods netip.Prefix
	via  netip.Addr
	link int // the interface's index
}

// errNotOnLink is the error for a next hop that is not on a link of this machine.
var errNotOnLink = errors.New("not on a link of this machine")

// kernel is what the Controller uses of the machine's network.
type kernel interface {
	// routes returns our routes to destinations within the range.
	routes(within netip.Prefix) ([]route, error)
	// link returns the interface on whose link the address is, or errNotOnLink.
	link(address netip.Addr) (int, error)
	replace(r route) error
	remove(r route) error
	// watch calls changed whenever a change of the machine's network may concern our routes, until ctx ends.
	watch(ctx context.Context, changed func()) error
}

// machine is the kernel of the network namespace of the calling thread.
type machine struct{}

func (machine) routes(within netip.Prefix) ([]route, error) {
	family := netlink.FAMILY_V4
	if within.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	all, err := machineroutes.RetryInterrupted(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{Protocol: Protocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes to Pods: %w", err)
	}
	var ours []route
	for _, one := range all {
		pods, ok := prefixOf(one.Dst)
		via, _ := netip.AddrFromSlice(one.Gw)
		via = via.Unmap()
		if ok && within.Overlaps(pods) && pods.Bits() >= within.Bits() {
			ours = append(ours, route{pods: pods, via: via, link: one.LinkIndex})
		}
	}
	return ours, nil
}

func (machine) link(address netip.Addr) (int, error) {
	found, err := netlink.RouteGet(address.AsSlice())
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return 0, errNotOnLink
	}
	if err != nil {
		return 0, fmt.Errorf("find the link of %s: %w", address, err)
	}
	at := slices.IndexFunc(found, func(r netlink.Route) bool { return r.Gw == nil && r.Type == unix.RTN_UNICAST })
	if at < 0 {
		return 0, errNotOnLink
	}
	return found[at].LinkIndex, nil
}

func (machine) replace(r route) error {
	if err := netlink.RouteReplace(r.netlink()); err != nil {
		return fmt.Errorf("add the route to %s via %s: %w", r.pods, r.via, err)
	}
	return nil
}

func (machine) remove(r route) error {
	if err := netlink.RouteDel(r.netlink()); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove the route to %s via %s: %w", r.pods, r.via, err)
	}
	return nil
}

func (machine) watch(ctx context.Context, changed func()) error {
	watcher, err := rtnetlink.New(rtnetlink.Deps{OnChange: func(context.Context) { changed() }},
		rtnetlink.Config{Groups: []uint{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}, Relevant: relevant})
	if err != nil {
		return err
	}
	return watcher.Start(ctx)
}

// relevant reports whether a notification may change what the routes need: a removed route of ours, or a route of a link,
// which comes and goes with the link and its addresses. Those of Pods are none of them.
func relevant(message syscall.NetlinkMessage) bool {
	if len(message.Data) < unix.SizeofRtMsg {
		return false
	}
	route := nl.DeserializeRtMsg(message.Data)
	if route.Table != unix.RT_TABLE_MAIN {
		return false
	}
	if message.Header.Type == unix.RTM_DELROUTE && route.Protocol == Protocol {
		return true
	}
	if route.Family == unix.AF_INET6 { // they have no scope, and each interface of a Pod has routes of its link-local addresses
		return route.Protocol == unix.RTPROT_KERNEL && !isLinkLocal(message.Data[unix.SizeofRtMsg:])
	}
	return route.Scope == unix.RT_SCOPE_LINK
}

// isLinkLocal reports whether the destination among the attributes of a route is for one link only.
func isLinkLocal(data []byte) bool {
	attributes, err := nl.ParseRouteAttr(data)
	if err != nil {
		return false
	}
	for _, attribute := range attributes {
		if address, ok := netip.AddrFromSlice(attribute.Value); attribute.Attr.Type == unix.RTA_DST && ok {
			return address.IsLinkLocalUnicast() || address.IsMulticast()
		}
	}
	return false
}

func (r route) netlink() *netlink.Route {
	return &netlink.Route{
		Dst: &net.IPNet{IP: r.pods.Addr().AsSlice(), Mask: net.CIDRMask(r.pods.Bits(), r.pods.Addr().BitLen())}, Gw: r.via.AsSlice(), LinkIndex: r.link,
		Protocol: Protocol,
	}
}

func prefixOf(network *net.IPNet) (netip.Prefix, bool) {
	if network == nil {
		return netip.Prefix{}, false
	}
	address, ok := netip.AddrFromSlice(network.IP)
	ones, size := network.Mask.Size()
	if size == 32 {
		address = address.Unmap()
	}
	return netip.PrefixFrom(address, ones), ok
}

// Remove removes the routes to Pods within the ranges, after the last start of a Controller has ended.
func Remove(podCIDRs ...netip.Prefix) error {
	var errs []error
	for _, within := range podCIDRs {
		routes, err := machine{}.routes(within)
		errs = append(errs, err)
		for _, one := range routes {
			errs = append(errs, machine{}.remove(one))
		}
	}
	return errors.Join(errs...)
}
