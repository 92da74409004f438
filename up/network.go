package up

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/ipforward"
)

// ensureBridge creates the pod bridge with the gateway's address, or uses the existing one. The bridge comes before
// everything else, because the API server and the kubelet listen on its address.
func (l Layout) ensureBridge() error {
	name := l.Bridge()
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("create the pod bridge %s: %w", name, err)
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return fmt.Errorf("look up the pod bridge %s: %w", name, err)
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("the network interface %s is not a bridge: remove it", name)
	}
	if err := l.setBridgeAddresses(link); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up the pod bridge %s: %w", name, err)
	}
	if _, err := ipforward.Enable(false); err != nil {
		return err
	}
	if l.Gateway6.IsValid() {
		_, err := ipforward.Enable(true)
		return err
	}
	return nil
}

// setBridgeAddresses sets the bridge's address of each family.
func (l Layout) setBridgeAddresses(link netlink.Link) error {
	addresses := []*netlink.Addr{{IPNet: &net.IPNet{IP: l.Gateway.AsSlice(), Mask: net.CIDRMask(l.Pods.Bits(), 32)}}}
	if l.Gateway6.IsValid() {
		// No other machine is on the bridge, so nothing can have the address: it is used without checking that first.
		addresses = append(addresses, &netlink.Addr{Flags: unix.IFA_F_NODAD,
			IPNet: &net.IPNet{IP: l.Gateway6.AsSlice(), Mask: net.CIDRMask(l.Pods6.Bits(), 128)}})
	}
	for _, address := range addresses {
		if err := netlink.AddrReplace(link, address); err != nil {
			return fmt.Errorf("set the address of the pod bridge %s to %s: %w", l.Bridge(), address.IP, err)
		}
	}
	return nil
}

// routeServices lets programs of this machine, the API server among them, reach Services' IPv4 addresses also while it has no default
// route: kube-proxy gives a packet to a Service another destination only once the packet has a route. The route is in the table
// default, in which the kernel looks last, so any other route takes precedence. It ends with the bridge.
func (c *Cluster) routeServices() error {
	_, services, err := c.networks()
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(c.Bridge())
	if err != nil {
		return fmt.Errorf("look up the pod bridge %s: %w", c.Bridge(), err)
	}
	return routeByDefault(link, services.v4, c.Gateway)
}

// routeByDefault routes a network to the interface where no other route leads to it; from is the address that packets then have.
func routeByDefault(link netlink.Link, network netip.Prefix, from netip.Addr) error {
	err := netlink.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_DEFAULT, Scope: netlink.SCOPE_LINK, Src: from.AsSlice(),
		Dst: &net.IPNet{IP: network.Addr().AsSlice(), Mask: net.CIDRMask(network.Bits(), 32)},
	})
	if err != nil {
		return fmt.Errorf("route %s to %s: %w", network, link.Attrs().Name, err)
	}
	return nil
}

// describeConflict returns the name of a conflicting interface and what to do about it.
func describeConflict(link string, dead []*Leftover) string {
	for _, leftover := range dead {
		if link != (Layout{ID: leftover.ID}).Bridge() {
			continue
		}
		cluster := "cluster " + leftover.ID
		if leftover.DataDir != "" {
			cluster += " in " + leftover.DataDir
		}
		return fmt.Sprintf("%s, left behind by the dead %s: remove it with berth doctor --fix, or choose another range", link, cluster)
	}
	return link + ": choose another range"
}

// removeBridge removes the pod bridge; a missing one is not an error.
func (l Layout) removeBridge() error {
	link, err := netlink.LinkByName(l.Bridge())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up the pod bridge %s: %w", l.Bridge(), err)
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("remove the pod bridge %s: %w", l.Bridge(), err)
	}
	return nil
}

// portOwner names the process that listens on the port of the network "tcp" or "udp", if /proc shows it.
func portOwner(network string, port uint16) string {
	if owner := ownerOf(socketsOn(network, port)); owner != "" {
		return owner
	}
	return "another process (port " + strconv.Itoa(int(port)) + ")"
}

// socketsOn returns the sockets that listen on the port, in the form of links to open files in /proc.
func socketsOn(network string, port uint16) map[string]bool {
	sockets := make(map[string]bool)
	// The state of a TCP socket that listens, and of a UDP socket that is not connected.
	state := map[string]string{"tcp": "0A", "udp": "07"}[network]
	for _, table := range []string{network, network + "6"} {
		file, err := os.Open(filepath.Join("/proc/net", table))
		if err != nil {
			continue // no IPv6, or no /proc
		}
		scanner := bufio.NewScanner(file)
		for scanner.Scan() {
			fields := strings.Fields(scanner.Text())
			if len(fields) > 9 && fields[3] == state && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+fields[9]+"]"] = true
			}
		}
		_ = file.Close()
	}
	return sockets
}

// ownerOf names the process that has one of the sockets open, empty if /proc shows none.
func ownerOf(sockets map[string]bool) string {
	if len(sockets) == 0 {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is constant and right
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !sockets[target] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		command, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		if err != nil {
			return "process " + pid
		}
		name := strings.TrimSpace(string(command))
		// comm has at most 15 bytes; the full name is in the arguments, unless the program has changed them.
		if argv, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil {
			program, _, _ := strings.Cut(string(argv), "\x00")
			if whole := filepath.Base(program); strings.HasPrefix(whole, name) {
				name = whole
			}
		}
		return fmt.Sprintf("%s (process %s)", name, pid)
	}
	return ""
}
