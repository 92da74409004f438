package node_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/node"
)

// TestAddressesOfACloud has the addresses of a Node that its cloud's controller manager has not seen yet.
func TestAddressesOfACloud(t *testing.T) {
	ip := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}
	name := corev1.NodeAddress{Type: corev1.NodeHostName, Address: "n1"}
	for title, test := range map[string]struct {
		cloud     node.Cloud
		addresses []corev1.NodeAddress
		provided  string
	}{
		"none chosen":         {node.Cloud{External: true}, []corev1.NodeAddress{name}, ""},
		"of a family":         {node.Cloud{External: true, ChosenIPs: true}, []corev1.NodeAddress{ip, name}, ""},
		"one":                 {node.Cloud{External: true, ChosenIPs: true, NodeIPs: []net.IP{net.ParseIP("10.0.0.1")}}, []corev1.NodeAddress{ip, name}, "10.0.0.1"},
		"no cloud, but it is": {node.Cloud{ChosenIPs: true}, []corev1.NodeAddress{ip, name}, ""},
	} {
		t.Run(title, func(t *testing.T) {
			run(t, func(f *fixture) {
				f.configure = func(_ *node.Deps, config *node.Config) { config.Cloud = test.cloud }
			}, func(t *testing.T, f *fixture) {
				n := f.get(t)
				require.Equal(t, test.addresses, n.Status.Addresses)
				require.Equal(t, test.provided, n.Annotations["alpha.kubernetes.io/provided-node-ip"])
			})
		})
	}
}
