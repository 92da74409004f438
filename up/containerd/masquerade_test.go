package containerd

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyTheRulesOfMasqueradeAreOurs(t *testing.T) {
	rules := parseMasquerades(`-P POSTROUTING ACCEPT
-A POSTROUTING -s 10.1.0.0/24 ! -d 224.0.0.0/4 ! -o berth0 -m comment --comment "berth pods on berth0" -j MASQUERADE
-A POSTROUTING -s 10.1.0.0/24 ! -d 224.0.0.0/4 ! -o berth0 -m comment --comment "berth pods on berth0" -j MASQUERADE
-A POSTROUTING -s 10.2.1.0/24 ! -d 10.2.0.0/16 ! -o berth1 -m comment --comment "berth pods on berth1" -j MASQUERADE
-A POSTROUTING -s 10.3.0.0/24 ! -d 224.0.0.0/4 ! -o eth0 -m comment --comment "berth pods on berth0" -j MASQUERADE
-A POSTROUTING -s 10.4.0.0/24 ! -d 224.0.0.0/4 ! -o berth0 -m comment --comment "berth pods on berth0" -j ACCEPT
-A POSTROUTING -s 10.5.0.0/24 ! -o berth0 -j MASQUERADE
-A POSTROUTING -s 10.6.0.2/32 -m comment --comment "name: \"berth0\" id: \"1\"" -j CNI-485d9bd6cfcbd2101b2fed23
`)
	one := netip.MustParsePrefix("10.1.0.0/24")
	require.Equal(t, []masquerade{
		{one, multicast, "berth0"}, {one, multicast, "berth0"},
		{netip.MustParsePrefix("10.2.1.0/24"), netip.MustParsePrefix("10.2.0.0/16"), "berth1"},
	}, rules)
}
