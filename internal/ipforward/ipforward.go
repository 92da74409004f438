package ipforward

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/routes"
)

// Enable lets the machine forward packets of one family, in the network namespace of the calling thread, and returns the settings
// that it has changed, as NAME=VALUE of sysctl(8). A machine that forwards IPv6 packets ignores routers' advertisements, unless
// the setting of an interface says otherwise: interfaces by which the machine has such a route keep it.
func Enable(ipv6 bool) (changed []string, err error) { return enable("/proc/sys", ipv6, advertised) }

// advertised returns the interfaces with a route from an advertisement.
func advertised() ([]string, error) {
	filter := &netlink.Route{Protocol: unix.RTPROT_RA}
	all, err := routes.RetryInterrupted(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V6, filter, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes from routers' advertisements: %w", err)
	}
	var names []string
	for _, route := range all {
		if link, err := netlink.LinkByIndex(route.LinkIndex); err == nil && !slices.Contains(names, link.Attrs().Name) {
			names = append(names, link.Attrs().Name) // one that has just been removed has no route any more
		}
	}
	return names, nil
}

// Values of accept_ra: advertisements are followed while the machine is no router, or always.
const (
	acceptAsHost = "1"
	acceptAlways = "2"
)

func enable(root string, ipv6 bool, advertised func() ([]string, error)) (changed []string, err error) {
	const on = "1"
	if !ipv6 {
		return set(root, "net/ipv4/ip_forward", on, nil)
	}
	all := "net/ipv6/conf/all/forwarding"
	if read(root, all) == on {
		return nil, nil
	}
	interfaces, err := advertised()
	if err != nil {
		return nil, err
	}
	for _, link := range interfaces {
		name := filepath.Join("net/ipv6/conf", link, "accept_ra")
		if read(root, name) != acceptAsHost {
			continue
		}
		if changed, err = set(root, name, acceptAlways, changed); err != nil {
			return nil, err
		}
	}
	return set(root, all, on, changed)
}

func read(root, name string) string {
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "" // set fails in the same way, and says why
	}
	return strings.TrimSpace(string(data))
}

// set sets a value that differs, and returns the settings with this one added.
func set(root, name, value string, changed []string) ([]string, error) {
	if read(root, name) == value {
		return changed, nil
	}
	if err := os.WriteFile(filepath.Join(root, name), []byte(value), 0o644); err != nil {
		return nil, fmt.Errorf("enable IP forwarding (%s): %w", filepath.Join(root, name), err)
	}
	return append(changed, strings.ReplaceAll(name, "/", ".")+"="+value), nil
}
