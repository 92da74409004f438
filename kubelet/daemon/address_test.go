package daemon

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheSecondAddressIsOfTheOtherFamily(t *testing.T) {
	v4, v6, bridge := net.ParseIP("192.0.2.1"), net.ParseIP("2001:db8::1"), net.ParseIP("fd00:85::1")
	for name, test := range map[string]struct {
		rule AddressRule
		want []net.IP
	}{
		"both are given":         {AddressRule{IPs: []net.IP{v4, v6}, Second: bridge}, []net.IP{v4, v6}},
		"one is given":           {AddressRule{IPs: []net.IP{v4}, Second: bridge}, []net.IP{v4, bridge}},
		"the same family":        {AddressRule{IPs: []net.IP{v6}, Second: bridge}, []net.IP{v6}},
		"none":                   {AddressRule{IPs: []net.IP{v4}}, []net.IP{v4}},
		"a route to this family": {AddressRule{IPs: []net.IP{v4}, SecondRoute: "https://127.0.0.1:443", Second: bridge}, []net.IP{v4, bridge}},
		"loopback":               {AddressRule{IPs: []net.IP{v4}, SecondRoute: "https://[::1]:443", Second: bridge}, []net.IP{v4, bridge}},
	} {
		got, err := test.rule.Find(t.Context(), "n", "")
		require.NoError(t, err, name)
		require.Len(t, got, len(test.want), name)
		for i := range got {
			require.True(t, test.want[i].Equal(got[i]), "%s: %v", name, got)
		}
	}
}
