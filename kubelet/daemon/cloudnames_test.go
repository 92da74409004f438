package daemon

import (
	"fmt"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestServingCertificateOfACloudNamesItsAddresses has the cloud's controller manager set the addresses after the Node was registered.
func TestServingCertificateOfACloudNamesItsAddresses(t *testing.T) {
	var calls []string
	c := &cloudNames{
		set: func(names []string, ips []net.IP) error {
			calls = append(calls, fmt.Sprint(names, ips))
			return nil
		},
		start: func() { calls = append(calls, "start") }, logger: slog.New(slog.DiscardHandler),
	}
	update := func(addresses ...corev1.NodeAddress) {
		c.update(&corev1.Node{Status: corev1.NodeStatus{Addresses: addresses}})
	}
	name := corev1.NodeAddress{Type: corev1.NodeHostName, Address: "n1"}
	update(name)
	require.Empty(t, calls, "no IP is known")
	inner := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}
	outer := corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}
	update(inner, outer, name, corev1.NodeAddress{Type: corev1.NodeExternalDNS, Address: "a.example"})
	update(outer, corev1.NodeAddress{Type: corev1.NodeExternalDNS, Address: "a.example"}, inner, name)
	update(inner, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "10.0.0.1"})
	require.Equal(t, []string{"[a.example n1] [10.0.0.1 192.0.2.1]", "start", "[] [10.0.0.1]"}, calls)
}
