package up

import (
	"bufio"
	"context"
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
)

// ensureBridge creates the pod bridge with the gateway's address, or uses the existing one. The bridge comes before
// everything else, because the API server and the kubelet listen on its address.
func (l Layout) ensureBridge(ctx context.Context) error {
	if err := l.checkOverlap(ctx); err != nil {
		return err
	}
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
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: l.Gateway.AsSlice(), Mask: net.CIDRMask(l.Pods.Bits(), 32)}}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("set the address of the pod bridge %s to %s: %w", name, l.Gateway, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up the pod bridge %s: %w", name, err)
	}
	const forward = "/proc/sys/net/ipv4/ip_forward"
	if err := os.WriteFile(forward, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("enable IP forwarding (%s): %w", forward, err)
	}
	return nil
}

// retryInterrupted repeats a netlink listing that was interrupted by a change, such as an interface of another cluster's
// Pod.
func retryInterrupted[T any](list func() ([]T, error)) ([]T, error) {
	const maxAttempts = 50
	for range maxAttempts - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}

// checkOverlap fails if another interface already has an address in the pod network: two routes to the same
// addresses would send packets to the wrong cluster.
func (l Layout) checkOverlap(ctx context.Context) error {
	whole, err := netip.ParsePrefix(l.PodCIDR)
	if err != nil {
		return fmt.Errorf("--pod-cidr: %w", err)
	}
	links, err := retryInterrupted(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list network interfaces: %w", err)
	}
	for _, link := range links {
		if link.Attrs().Name == l.Bridge() {
			continue
		}
		addrs, err := retryInterrupted(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
		if err != nil {
			return fmt.Errorf("list the addresses of %s: %w", link.Attrs().Name, err)
		}
		for _, addr := range addrs {
			ip, ok := netip.AddrFromSlice(addr.IP.To4())
			ones, _ := addr.Mask.Size()
			if ok && netip.PrefixFrom(ip, ones).Masked().Overlaps(whole) {
				dead, _ := FindLeftovers(ctx) // without them the message is less specific
				return fmt.Errorf("--pod-cidr %s overlaps %s of interface %s", whole, addr.IPNet, describeConflict(link.Attrs().Name, dead))
			}
		}
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

// checkPort returns an error if a TCP address is in use. It names the process that uses it.
func checkPort(addr netip.AddrPort, flag string) error {
	listener, err := net.Listen("tcp", addr.String())
	if err == nil {
		return listener.Close()
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%s: listen on %s: %w", flag, addr, err)
	}
	return fmt.Errorf("%s: %s is in use by %s: stop it, or choose another port", flag, addr, portOwner(addr.Port()))
}

// portOwner names the process that listens on the port, if /proc shows it.
func portOwner(port uint16) string {
	inodes := make(map[string]bool)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(table)
		if err != nil {
			continue // no IPv6, or no /proc
		}
		scanner := bufio.NewScanner(file)
		for scanner.Scan() {
			fields := strings.Fields(scanner.Text())
			const stateListen = "0A"
			if len(fields) > 9 && fields[3] == stateListen && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				inodes["socket:["+fields[9]+"]"] = true
			}
		}
		_ = file.Close()
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is constant and right
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !inodes[target] {
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
	return "another process (port " + strconv.Itoa(int(port)) + ")"
}
