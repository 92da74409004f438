package nodenetwork

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzSocket reads an arbitrary line of the kernel's tables of sockets: a socket has an address of IPv4 or IPv6, and a port.
func FuzzSocket(f *testing.F) {
	f.Add("   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0000000000000000 100 0 0 10 0")
	f.Add("   0: 0000000000000000FFFF00000100007F:0035 00000000000000000000000000000000:0000 0A 0 0 0 0 0 7")
	f.Add("0: 0100007F0100007F:FFFFF 0 0A 0 0 0 0 0 0")
	f.Fuzz(func(t *testing.T, line string) {
		socket, inode, ok := parseSocket(line, tcpListen)
		if !ok {
			return
		}
		require.Contains(t, []int{net.IPv4len, net.IPv6len}, len(socket.Address))
		require.GreaterOrEqual(t, socket.Port, int32(0))
		require.LessOrEqual(t, socket.Port, int32(65535))
		require.NotEmpty(t, inode)
	})
}
