package routes

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestNetworksOfRoutes(t *testing.T) {
	route := func(network string, kind int) netlink.Route {
		_, dst, err := net.ParseCIDR(network)
		require.NoError(t, err)
		return netlink.Route{Dst: dst, Type: kind}
	}
	for network, counts := range map[string]bool{
		"10.0.0.0/8": true, "192.0.2.1/32": true, "fd00::/64": true,
		"0.0.0.0/0": false, "128.0.0.0/1": false, "224.0.0.0/4": false, "fe80::/64": false,
	} {
		found, ok := networkOf(route(network, unix.RTN_UNICAST))
		require.Equal(t, counts, ok, network)
		if ok {
			require.Equal(t, network, found.String())
		}
	}
	_, ok := networkOf(route("192.0.2.255/32", unix.RTN_BROADCAST))
	require.False(t, ok)
	_, ok = networkOf(netlink.Route{})
	require.False(t, ok, "the default route")
}

func TestTheLoopbackNetworkIsListed(t *testing.T) {
	found, err := List()
	require.NoError(t, err)
	require.Condition(t, func() bool {
		for _, route := range found {
			if route.Interface == "lo" && route.Network.String() == "127.0.0.0/8" {
				return true
			}
		}
		return false
	}, "%v", found)
}
