package up

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNetworksOfBothFamilies(t *testing.T) {
	l := layoutFor(t, Config{DataDir: "/data", NodeName: "n", PodCIDR: "10.1.0.0/16,fd00:1::/56", ServiceCIDR: "10.2.0.0/16,fd00:2::/112"})
	require.Equal(t, "10.1.0.1", l.Gateway.String())
	require.Equal(t, "fd00:1::1", l.Gateway6.String())
	require.Equal(t, "fd00:1::/64", l.Pods6.String(), "the first node's part")
	address, err := l.dnsServiceAddress()
	require.NoError(t, err)
	require.Equal(t, "10.2.0.10", address.String())
	conflicts, err := l.networkConflicts(nil, []state{{PodCIDR: "10.9.0.0/16,fd00:1::/64", ServiceCIDR: "10.8.0.0/16,fd00:8::/112", dataDir: "/other"}})
	require.NoError(t, err)
	require.Len(t, conflicts, 1)
	require.Equal(t, "fd00:1::/64", conflicts[0].theirs.String())
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
