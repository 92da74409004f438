package up

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortInUseNamesTheProcess(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := netip.MustParseAddrPort(listener.Addr().String())
	tcp := port{"tcp", addr, "--api-port"}
	err = tcp.check(t.Context())
	require.ErrorContains(t, err, "--api-port: tcp "+addr.String()+" is in use by ")
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))
	require.NoError(t, listener.Close())
	require.NoError(t, tcp.check(t.Context()))
}

func TestManifestErrorsNameTheDocument(t *testing.T) {
	objects, err := parseManifest([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n"))
	require.NoError(t, err)
	require.Len(t, objects, 2)
	_, err = parseManifest([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nkind: Pod\n"))
	require.ErrorContains(t, err, "document 2")
	_, err = parseManifest([]byte("{a: [}"))
	require.ErrorContains(t, err, "document 1")
}

func TestAFreePortIsFree(t *testing.T) {
	number, err := FreePort()
	require.NoError(t, err)
	free := port{"tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(number)), "--api-port"}
	require.NoError(t, free.check(t.Context()))
}

func TestConflictsSayWhatToDo(t *testing.T) {
	dead := []*Leftover{{ID: "0123abcd"}, {ID: "4567cdef", DataDir: "/data"}}
	require.Equal(t, "tun0: choose another range", describeConflict("tun0", dead))
	require.Equal(t, "berth0f0f0f0f: choose another range", describeConflict("berth0f0f0f0f", dead), "it lives")
	require.Equal(t, "berth0123abcd, left behind by the dead cluster 0123abcd: remove it with berth doctor --fix, or choose another range",
		describeConflict("berth0123abcd", dead))
	require.Contains(t, describeConflict("berth4567cdef", dead), "left behind by the dead cluster 4567cdef in /data:")
}
