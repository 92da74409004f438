package daemon

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
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

// TestAnAddressOfAFamilyIsChosen: --node-ip=0.0.0.0 chooses the default address, which the Node of a cloud has until the cloud's controller manager
// sets others. The cloud itself is not asked for that address.
func TestAnAddressOfAFamilyIsChosen(t *testing.T) {
	config := Config{ExternalCloud: true}
	require.False(t, config.cloud().ChosenIPs)
	config.Addresses.IPs = []net.IP{net.IPv4zero}
	require.True(t, config.cloud().ChosenIPs)
	require.Empty(t, config.cloud().NodeIPs)
	config.Addresses.IPs = []net.IP{net.IPv4(192, 0, 2, 1)}
	require.True(t, config.cloud().ChosenIPs)
	require.Len(t, config.cloud().NodeIPs, 1)
}

// TestAnAddressOfAnotherMachineIsWarnedOf: nothing else says why the API server cannot reach the kubelet.
func TestAnAddressOfAnotherMachineIsWarnedOf(t *testing.T) {
	local, err := net.InterfaceAddrs()
	require.NoError(t, err)
	require.NotEmpty(t, local)
	own, ok := local[len(local)-1].(*net.IPNet)
	require.True(t, ok)
	var log bytes.Buffer
	r := &runner{deps: Deps{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	r.warnOfForeign(nil)
	r.warnOfForeign([]net.IP{own.IP, net.IPv4(127, 0, 0, 9)})
	require.Empty(t, log.String())
	r.warnOfForeign([]net.IP{own.IP, net.ParseIP("2001:db8::77")})
	require.Contains(t, log.String(), "address=2001:db8::77")
	require.Equal(t, 1, strings.Count(log.String(), "\n"))
}
