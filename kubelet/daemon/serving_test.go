package daemon

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestACertificateIsForANameThatIsAnAddress: clients verify an address by the certificate's addresses alone, never by its names.
func TestACertificateIsForANameThatIsAnAddress(t *testing.T) {
	ips := []net.IP{net.ParseIP("192.0.2.1"), net.ParseIP("2001:db8::1")}
	names, all := (&runner{name: "n1"}).certified(ips)
	require.Equal(t, []string{"n1"}, names)
	require.Equal(t, ips, all)

	names, all = (&runner{name: "192.0.2.9"}).certified(ips)
	require.Empty(t, names)
	require.Equal(t, []net.IP{ips[0], net.ParseIP("192.0.2.9"), ips[1]}, all)

	names, all = (&runner{name: "192.0.2.1"}).certified(ips[:1])
	require.Empty(t, names)
	require.Equal(t, ips[:1], all)
}
