package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	// serverTimeout bounds the DNS lookup of the API server's name, nameTimeout that of the node's own.
	serverTimeout = 10 * time.Second
	nameTimeout   = 2 * time.Second
)

// nodeName returns the Node's name.
func (c *Config) nodeName() (string, error) {
	name := c.NodeName
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("find the machine's host name (or name the node): %w", err)
		}
		name = host
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", errors.New("the machine has no host name: name the node")
	}
	return name, nil
}

// fixed returns the configured addresses, nil if they have to be found.
func (r *AddressRule) fixed() []net.IP {
	if len(r.IPs) == 0 || slices.ContainsFunc(r.IPs, net.IP.IsUnspecified) {
		return nil
	}
	return r.IPs
}

// Find returns the Node's addresses, the primary one first. name is the Node's, server the URL of the API server; empty if there is
// none.
func (r *AddressRule) Find(ctx context.Context, name, server string) ([]net.IP, error) {
	ips, err := r.findPrimary(ctx, name, server)
	if err != nil || len(ips) != 1 {
		return ips, err
	}
	otherFamily := func(ip net.IP) bool { return (ip.To4() == nil) != (ips[0].To4() == nil) }
	if r.SecondRoute != "" {
		// A machine without such an address has no route.
		if second, err := routeTo(ctx, r.SecondRoute); err == nil && otherFamily(second) && second.IsGlobalUnicast() {
			return append(ips, second), nil
		}
	}
	if r.Second != nil && otherFamily(r.Second) {
		return append(ips, r.Second), nil
	}
	return ips, nil
}

// findPrimary returns the configured addresses, or the one that is found.
func (r *AddressRule) findPrimary(ctx context.Context, name, server string) ([]net.IP, error) {
	if ips := r.fixed(); ips != nil {
		return ips, nil
	}
	if r.ServerRoute {
		ip, err := routeTo(ctx, server)
		if err != nil {
			return nil, err
		}
		return []net.IP{ip}, nil
	}
	if ip := net.ParseIP(name); ip != nil {
		return []net.IP{ip}, nil
	}
	wantIPv6 := len(r.IPs) > 0 && r.IPs[0].To4() == nil
	if ip := lookUp(ctx, name, wantIPv6); ip != nil {
		return []net.IP{ip}, nil
	}
	return r.defaultAddress(ctx, server)
}

// defaultAddress returns the address of the interface with the default route, or else the one by which the API server is reached.
// A machine without any network has its loopback address.
func (r *AddressRule) defaultAddress(ctx context.Context, server string) ([]net.IP, error) {
	var family net.IP
	if len(r.IPs) > 0 {
		family = r.IPs[0]
	}
	ip, err := utilnet.ResolveBindAddress(family)
	if err == nil && !ip.IsUnspecified() {
		return []net.IP{ip}, nil
	}
	if server == "" {
		return []net.IP{net.IPv4(127, 0, 0, 1)}, nil
	}
	route, routeErr := routeTo(ctx, server)
	if routeErr != nil {
		return nil, fmt.Errorf("find the node's address (or give --node-ip): %w", errors.Join(err, routeErr))
	}
	return []net.IP{route}, nil
}

// lookUp returns an address of the name that this machine has and others can reach; nil if there is none.
func lookUp(ctx context.Context, name string, wantIPv6 bool) net.IP {
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupIP(ctx, "ip", name)
	if err != nil {
		return nil
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var other net.IP
	for _, ip := range found {
		if !has(local, ip) || !ip.IsGlobalUnicast() {
			continue
		}
		if (ip.To4() == nil) == wantIPv6 {
			return ip
		}
		other = ip
	}
	return other
}

// foreign returns those of the addresses that the machine does not have.
func foreign(ips []net.IP) ([]net.IP, error) {
	local, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the machine's addresses: %w", err)
	}
	var missing []net.IP
	for _, ip := range ips {
		if !ip.IsLoopback() && !has(local, ip) {
			missing = append(missing, ip)
		}
	}
	return missing, nil
}

// has reports whether an address is one of the machine's.
func has(local []net.Addr, ip net.IP) bool {
	return slices.ContainsFunc(local, func(address net.Addr) bool {
		network, ok := address.(*net.IPNet)
		return ok && network.IP.Equal(ip)
	})
}

// warnOfForeign warns of configured addresses that the machine does not have. The Node has them nevertheless: they may be added later.
func (r *runner) warnOfForeign(ips []net.IP) {
	missing, err := foreign(ips)
	if err != nil {
		r.deps.Logger.Warn("failed to check the node's addresses", "error", err)
	}
	for _, ip := range missing {
		r.deps.Logger.Warn("the machine does not have the node's address; others cannot reach the kubelet and Pods on the host's network there",
			"address", ip, "remedy", "correct --node-ip, or add the address to an interface")
	}
}

// routeTo returns the local address of connections to the API server.
func routeTo(ctx context.Context, server string) (net.IP, error) {
	target, err := url.Parse(server)
	if err != nil || target.Host == "" {
		return nil, fmt.Errorf("find the node's address: the API server %q is not a URL: give --node-ip", server)
	}
	port := target.Port()
	if port == "" {
		port = "443"
	}
	// Connecting a datagram socket sends nothing: it only makes the kernel choose a route.
	dialer := net.Dialer{Timeout: serverTimeout}
	connection, err := dialer.DialContext(ctx, "udp", net.JoinHostPort(target.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("find the node's address (or give --node-ip): %w", err)
	}
	defer connection.Close()
	local, ok := connection.LocalAddr().(*net.UDPAddr)
	if !ok {
		return nil, fmt.Errorf("find the node's address: %s is no UDP address", connection.LocalAddr())
	}
	return local.IP, nil
}
