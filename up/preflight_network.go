package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/routes"
	"github.com/berth-dev/berth/kubelet/podroutes"
)

// adviceIsolated is the way out of a conflict with another program or cluster of this machine.
const adviceIsolated = "start this cluster with --isolated, which gives it a network of its own"

// networkConflict is a network of the machine, or of another cluster on it, that overlaps one of this cluster.
type networkConflict struct {
	flag    string
	ours    netip.Prefix
	theirs  netip.Prefix
	link    string // their interface
	cluster string // the data directory of the other cluster; empty if it is no other cluster's
}

// networkConflicts compares the cluster's networks with the machine's routes and with the networks of other clusters that run in
// the same network namespace.
func (l Layout) networkConflicts(machine []routes.Route, clusters []state) ([]networkConflict, error) {
	pods, services, err := l.networks()
	if err != nil {
		return nil, err
	}
	var all, found []networkConflict
	for _, ours := range pods.list() {
		all = append(all, networkConflict{flag: "--pod-cidr", ours: ours})
	}
	for _, ours := range services.list() {
		all = append(all, networkConflict{flag: "--service-cidr", ours: ours})
	}
	for _, own := range all {
		for _, cluster := range clusters {
			for _, text := range strings.Split(cluster.PodCIDR+","+cluster.ServiceCIDR, ",") {
				if theirs, err := netip.ParsePrefix(text); err == nil && theirs.Overlaps(own.ours) {
					own.theirs, own.cluster = theirs, cluster.dataDir
					found = append(found, own)
				}
			}
		}
		own.cluster = ""
		for _, route := range machine {
			// An earlier run that was killed has left routes to the Pods of other nodes.
			isPodRoute := route.Protocol == podroutes.Protocol && route.Network.Bits() >= pods.v4.Bits()
			if route.Interface != l.Bridge() && !isPodRoute && route.Network.Overlaps(own.ours) {
				own.theirs, own.link = route.Network, route.Interface
				found = append(found, own)
			}
		}
	}
	return found, nil
}

// checkNetworks fails if the machine, or another cluster on it, uses addresses of the cluster's networks: packets would go to
// the wrong one. The networks of an isolated cluster only hide those of the machine from its Pods, which a warning says.
func (l Layout) checkNetworks(ctx context.Context, warn func(string)) error {
	machine, err := routes.List()
	if err != nil {
		return err
	}
	var clusters []state
	if l.Server == "" { // a node has the networks of its cluster
		clusters = l.otherClusters()
	}
	conflicts, err := l.networkConflicts(machine, clusters)
	if err != nil || len(conflicts) == 0 {
		return err
	}
	if l.Isolated {
		warned := make(map[netip.Prefix]bool)
		for _, conflict := range conflicts {
			if conflict.cluster == "" && !bridgeName.MatchString(conflict.link) && !warned[conflict.theirs] {
				warned[conflict.theirs] = true
				warn(fmt.Sprintf("warning: Pods cannot reach %s of interface %s, because %s %s covers it: choose another range if they need it",
					conflict.theirs, conflict.link, conflict.flag, conflict.ours))
			}
		}
		return nil
	}
	first := conflicts[0]
	if first.cluster != "" {
		return fmt.Errorf("%s %s overlaps %s of the cluster in %s, which runs on this machine: choose another range, or %s", first.flag,
			first.ours, first.theirs, first.cluster, adviceIsolated)
	}
	dead, _ := FindLeftovers(ctx) // without them the message is less specific
	return fmt.Errorf("%s %s overlaps %s of interface %s, or %s", first.flag, first.ours, first.theirs,
		describeConflict(first.link, dead), adviceIsolated)
}

// bridgeName matches the names of clusters' network interfaces.
var bridgeName = regexp.MustCompile(`^berth[0-9a-f]{8}$`)

// dataLink is a symbolic link in the run directory to the data directory.
const dataLink = "data"

// otherClusters returns the states of the clusters that run in this network namespace beside this one.
func (l Layout) otherClusters() []state {
	links, _ := filepath.Glob(runDir("*") + "/" + dataLink) // the pattern is right
	var found []state
	for _, link := range links {
		dir, err := os.Readlink(link)
		if err != nil || clusterID(dir) == l.ID {
			continue
		}
		other, err := readState(filepath.Join(dir, stateName))
		if err != nil || other.Isolated || other.Server != "" {
			continue
		}
		if pid, running := lockHolder(filepath.Join(dir, lockName)); !running || isInOtherNetwork(pid) {
			continue
		}
		other.dataDir = dir
		found = append(found, other)
	}
	return found
}

// lockHolder reports whether a process has locked an existing file, and which; pid is 0 if that is unknown.
func lockHolder(path string) (pid int, locked bool) {
	file, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer file.Close()
	var held *filelock.HeldError
	if !errors.As(filelock.TryLock(file), &held) {
		return 0, false
	}
	return held.PID, true
}

// isInOtherNetwork reports whether a process is certainly in another network namespace than this one.
func isInOtherNetwork(pid int) bool {
	own, ownErr := os.Readlink("/proc/self/ns/net")
	other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return ownErr == nil && err == nil && own != other
}

// port is a port that the cluster listens on.
type port struct {
	network string // "tcp" or "udp"
	address netip.AddrPort
	flag    string // or the name of the component
}

// ports are those that the cluster listens on in its network namespace.
func (c *Cluster) ports() []port {
	if c.config.Member != nil {
		return nil // the kubelet has flags of its own for its address
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	ports := []port{
		{"tcp", netip.AddrPortFrom(loopback, uint16(c.APIPort)), "--api-port"},
		{"tcp", netip.AddrPortFrom(c.Gateway, uint16(c.APIPort)), "--api-port"},
		{"tcp", netip.AddrPortFrom(c.NodeIP(), kubeletPort), "kubelet"},
	}
	if c.NodeIP() != c.Gateway {
		ports = append(ports, port{"tcp", netip.AddrPortFrom(c.NodeIP(), uint16(c.APIPort)), "--api-address"})
	}
	if address := c.apiAddress6(); address.IsValid() {
		ports = append(ports, port{"tcp", netip.AddrPortFrom(address, uint16(c.APIPort)), "--api-address"})
	}
	if c.runs(dnsName) {
		for _, address := range c.gateways() {
			dns := netip.AddrPortFrom(address, dnsPort)
			ports = append(ports, port{"udp", dns, dnsName}, port{"tcp", dns, dnsName})
		}
	}
	return ports
}

// checkPorts fails if another process uses one of the cluster's ports. The pod bridge need not exist yet.
func (c *Cluster) checkPorts(ctx context.Context) error {
	var errs []error
	for _, port := range c.ports() {
		if err := port.check(ctx); err != nil && !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// check returns an error if the port is in use. It names the process that uses it.
func (p port) check(ctx context.Context) error {
	// The address need not be one of the machine's: a process that listens on all addresses is found before the bridge exists.
	level, option := unix.SOL_IP, unix.IP_FREEBIND
	if p.address.Addr().Is6() {
		level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND
	}
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		var err error
		controlErr := socket.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
		return errors.Join(controlErr, err)
	}}
	var err error
	if p.network == "udp" {
		var packets net.PacketConn
		if packets, err = config.ListenPacket(ctx, p.network, p.address.String()); err == nil {
			return packets.Close()
		}
	} else {
		var listener net.Listener
		if listener, err = config.Listen(ctx, p.network, p.address.String()); err == nil {
			return listener.Close()
		}
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%s: listen on %s: %w", p.flag, p.address, err)
	}
	return p.inUse()
}

// inUse returns the error for a port that another process uses.
func (p port) inUse() error {
	advice := "stop it, or " + adviceIsolated
	switch p.flag {
	case "--api-port":
		advice = "stop it, or choose another port (0: a free one)"
	case dnsName:
		advice = "stop it or let it listen on fewer addresses, start with --without " + dnsName + ", or " + adviceIsolated
	}
	return fmt.Errorf("%s: %s %s is in use by %s: %s", p.flag, p.network, p.address, portOwner(p.network, p.address.Port()), advice)
}

// portInUse returns the error for a TCP port that another process uses.
func portInUse(address netip.AddrPort, flag string) error { return port{"tcp", address, flag}.inUse() }
