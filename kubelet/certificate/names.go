package certificate

import (
	"bytes"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// NamesOf returns what the serving certificate of a Node with the addresses is valid for: its names and its IPs, internal and external ones,
// sorted.
func NamesOf(addresses []corev1.NodeAddress) (names []string, ips []net.IP) {
	for _, address := range addresses {
		ip := net.ParseIP(address.Address)
		switch {
		case ip != nil && address.Type != corev1.NodeInternalDNS && address.Type != corev1.NodeExternalDNS:
			ips = append(ips, ip)
		case address.Address != "" && address.Type != corev1.NodeInternalIP && address.Type != corev1.NodeExternalIP:
			names = append(names, address.Address)
		}
	}
	slices.Sort(names)
	slices.SortFunc(ips, func(a, b net.IP) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(names), slices.CompactFunc(ips, func(a, b net.IP) bool { return bytes.Equal(a, b) })
}
