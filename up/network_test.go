package up

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/testnet"
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

// The route to Services serves a machine without a default route, and gives way to any other route.
func TestServicesAreRoutedWhereNoOtherRouteIs(t *testing.T) {
	testnet.InNew(t, func() {
		services, gateway := netip.MustParsePrefix("10.86.0.0/16"), netip.MustParseAddr("10.85.0.1")
		bridge := addBridge(t, "pods", "10.85.0.1/24")
		routed := func() (link int, from string, err error) {
			routes, err := netlink.RouteGet(net.IPv4(10, 86, 0, 10))
			if err != nil {
				return 0, "", err
			}
			return routes[0].LinkIndex, routes[0].Src.String(), nil
		}
		_, _, err := routed()
		assert.ErrorIs(t, err, unix.ENETUNREACH)
		for range 2 { // a later start finds it
			assert.NoError(t, routeByDefault(bridge, services, gateway))
		}
		link, from, err := routed()
		assert.NoError(t, err)
		assert.Equal(t, bridge.Attrs().Index, link)
		assert.Equal(t, gateway.String(), from)

		uplink := addBridge(t, "uplink", "192.0.2.2/24")
		assert.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: net.IPv4(192, 0, 2, 1)}))
		link, _, err = routed()
		assert.NoError(t, err)
		assert.Equal(t, uplink.Attrs().Index, link)
	})
}

// addBridge adds a bridge that is up.
func addBridge(t *testing.T, name, address string) netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	assert.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	link, err := netlink.LinkByName(name)
	assert.NoError(t, err)
	parsed, err := netlink.ParseAddr(address)
	assert.NoError(t, err)
	assert.NoError(t, netlink.AddrAdd(link, parsed))
	assert.NoError(t, netlink.LinkSetUp(link))
	return link
}
