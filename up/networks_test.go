package up

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestNetworksOfBothFamilies(t *testing.T) {
	l := layoutFor(t, Config{DataDir: "/data", NodeName: "n", PodCIDR: "10.1.0.0/16,fd00:1::/56", ServiceCIDR: "10.2.0.0/16,fd00:2::/112"})
	require.Equal(t, "10.1.0.1", l.Gateway.String())
	require.Equal(t, "fd00:1::1", l.Gateway6.String())
	require.Equal(t, "fd00:1::/64", l.Pods6.String(), "the first node's part")
	addresses, err := l.dnsServiceAddresses()
	require.NoError(t, err)
	require.Equal(t, "10.2.0.10 fd00:2::a", joinAddresses(addresses))
	require.Contains(t, l.corefile(nil), "bind 10.1.0.1 fd00:1::1\n")
	objects, err := l.dnsObjects()
	require.NoError(t, err)
	require.Len(t, objects, 3)
	require.Equal(t, []string{"10.2.0.10", "fd00:2::a"}, objects[0].(*corev1.Service).Spec.ClusterIPs)
	require.Equal(t, []string{"fd00:1::1"}, objects[2].(*discoveryv1.EndpointSlice).Endpoints[0].Addresses)
	conflicts, err := l.networkConflicts(nil, []state{{PodCIDR: "10.9.0.0/16,fd00:1::/64", ServiceCIDR: "10.8.0.0/16,fd00:8::/112", dataDir: "/other"}})
	require.NoError(t, err)
	require.Len(t, conflicts, 1)
	require.Equal(t, "fd00:1::/64", conflicts[0].theirs.String())
}

func TestAddressesOfBothFamilies(t *testing.T) {
	config := Config{DataDir: "/data", NodeName: "n", PodCIDR: "10.1.0.0/16,fd00:1::/56", ServiceCIDR: "10.2.0.0/16,fd00:2::/112"}
	l := layoutFor(t, config)
	require.Equal(t, "fd00:1::1", l.NodeIP6().String(), "the bridge's")
	config.APIAddress = "192.0.2.1,2001:db8::1"
	config.Server, config.NodePodCIDR = "https://192.0.2.9:6443", "10.1.3.0/24,fd00:1:0:3::/64"
	l = layoutFor(t, config)
	require.Equal(t, "192.0.2.1 2001:db8::1", l.NodeIP().String()+" "+l.NodeIP6().String())
	require.Equal(t, "10.1.3.1 fd00:1:0:3::1", joinAddresses(l.gateways()))
	require.Equal(t, "fd00:1:0:3::/64", l.Pods6.String())
	for address, want := range map[string]string{
		"192.0.2.1,fd00:1::5": "choose ranges apart", "192.0.2.1,2001:db8": "after the IPv4 address comes an IPv6 address", "2001:db8::1": "not an IPv4 address",
		"192.0.2.1,fe80::1": "name one address", "192.0.2.1,::": "name one address",
	} {
		config.APIAddress = address
		_, err := config.Complete()
		require.ErrorContains(t, err, want, address)
	}
	config.PodCIDR, config.ServiceCIDR, config.APIAddress = "10.1.0.0/16", "10.2.0.0/16", "192.0.2.1,2001:db8::1"
	_, err := config.Complete()
	require.ErrorContains(t, err, "the cluster has no IPv6 (--pod-cidr 10.1.0.0/16): omit 2001:db8::1")
}

func TestErrorsOfBothFamiliesNameTheFlag(t *testing.T) {
	for _, test := range []struct{ pods, services, want string }{
		{"10.1.0.0/16,fd00:1::/56", "10.2.0.0/16", "give both an IPv6 network, or neither"},
		{"fd00:1::/56,10.1.0.0/16", "10.2.0.0/16,fd00:2::/112", "--pod-cidr \"fd00:1::/56\": an IPv4 network comes first"},
		{"10.1.0.0/16,10.3.0.0/16", "10.2.0.0/16,fd00:2::/112", "after an IPv4 network comes an IPv6 network"},
		{"10.1.0.0/16,fd00:1::1/56", "10.2.0.0/16,fd00:2::/112", "did you mean 10.1.0.0/16,fd00:1::/56?"},
		{"10.1.0.0/16,fd00:1::/56", "10.2.0.0/16,fd00:2::/64", "--service-cidr \"10.2.0.0/16,fd00:2::/64\": the IPv6 network has a length between /108 and /123"},
		{"10.1.0.0/16,fd00::/32", "10.2.0.0/16,fd00:2::/112", "--pod-cidr"},
		{"10.1.0.0/16,fd00:1::/56", "10.2.0.0/16,fd00:1::/112", "overlap: choose ranges apart"},
	} {
		_, _, err := Config{PodCIDR: test.pods, ServiceCIDR: test.services}.networks()
		require.ErrorContains(t, err, test.want)
	}
}
