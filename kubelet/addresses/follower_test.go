package addresses

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is how long the tests wait for what comes at once.
const soon = time.Minute

// outside is an address that is far away, and that nobody is sent anything to.
const outside = "198.51.100.1:6443"

// network is a network namespace of the test's own, in which a Follower runs. Its one link has 192.0.2.10.
type network struct {
	*netlink.Handle
	t       *testing.T
	link    netlink.Link
	clock   *clocktesting.FakeClock
	book    *Book
	changed chan string
	begun   atomic.Int64  // questions
	asked   atomic.Int64  // those that were answered
	gate    chan struct{} // if not nil, what the follower asks waits for a value
}

func newNetwork(t *testing.T, gate chan struct{}) *network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	n := &network{
		t: t, clock: clocktesting.NewFakeClock(time.Now()), book: NewBook([]net.IP{net.IPv4(192, 0, 2, 10)}),
		changed: make(chan string, 100), gate: gate,
	}
	ready, done := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- n.run(ctx, ready) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		n.Close()
	})
	require.NoError(t, <-ready)
	return n
}

// run makes the namespace and follows in it. The thread ends with it.
func (n *network) run(ctx context.Context, ready chan<- error) error {
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		n.Handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err == nil {
		err = n.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "net0"}})
	}
	if err == nil {
		n.link, err = n.LinkByName("net0")
	}
	if err == nil {
		err = errors.Join(n.LinkSetUp(n.link), n.lease("192.0.2.10/24", "192.0.2.1"))
	}
	ready <- err
	if err != nil {
		return err
	}
	follower, err := New(Deps{
		Book: n.book, Find: n.find, Clock: n.clock, Changed: func(now []net.IP) { n.changed <- fmt.Sprint(now) },
	})
	if err != nil {
		return err
	}
	return follower.Start(ctx)
}

// find is the address from which the world outside would be reached.
func (n *network) find(ctx context.Context) ([]net.IP, error) {
	n.begun.Add(1)
	defer n.asked.Add(1)
	if n.gate != nil {
		select {
		case <-n.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	connection, err := (&net.Dialer{}).DialContext(ctx, "udp", outside)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return []net.IP{connection.LocalAddr().(*net.UDPAddr).IP}, nil
}

func (n *network) address(address string) *netlink.Addr {
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		panic(err)
	}
	return parsed
}

// lease is what a DHCP client does with a new one.
func (n *network) lease(address, router string) error {
	return errors.Join(n.AddrAdd(n.link, n.address(address)), n.RouteReplace(n.outwards(router)))
}

// outwards is the way out by a router.
func (n *network) outwards(router string) *netlink.Route {
	return &netlink.Route{LinkIndex: n.link.Attrs().Index, Gw: net.ParseIP(router)}
}

func (n *network) becomes(addresses string) {
	n.t.Helper()
	select {
	case got := <-n.changed:
		require.Equal(n.t, addresses, got)
	case <-time.After(soon):
		n.t.Fatalf("nobody told of %s", addresses)
	}
	require.Equal(n.t, addresses, fmt.Sprint(n.book.IPs()))
}

// askedMore waits until the follower has asked again.
func (n *network) askedMore(than int64) {
	n.t.Helper()
	require.Eventually(n.t, func() bool { return n.asked.Load() > than }, soon, time.Millisecond)
}

// TestAddressesAreFollowed has an address come that is not the node's, a lease that is lost and another one, and a second
// network that the way out goes through. The clock stands still: only the kernel's word can be the cause.
func TestAddressesAreFollowed(t *testing.T) {
	n := newNetwork(t, nil)
	n.askedMore(0)
	asked := n.asked.Load()
	require.NoError(t, n.AddrAdd(n.link, n.address("203.0.113.5/24")))
	n.askedMore(asked)
	require.Empty(t, n.changed, "it is not the one that others see")
	require.NoError(t, n.AddrDel(n.link, n.address("203.0.113.5/24")))

	asked = n.asked.Load()
	require.NoError(t, n.AddrDel(n.link, n.address("192.0.2.10/24"))) // and with the last one, the kernel drops the routes
	n.askedMore(asked)
	require.Empty(t, n.changed, "an address that is lost is not another one yet")
	require.Equal(t, []string{"192.0.2.10"}, n.book.Strings())
	require.NoError(t, n.lease("192.0.2.77/24", "192.0.2.1"))
	n.becomes("[192.0.2.77]")

	require.NoError(t, n.AddrAdd(n.link, n.address("203.0.113.5/24")))
	require.NoError(t, n.RouteReplace(n.outwards("203.0.113.1")))
	n.becomes("[203.0.113.5]")
	require.Empty(t, n.changed)
	require.False(t, n.clock.HasWaiters())
}

// TestWhatTheKernelDroppedIsFound has more changes than the kernel keeps for who does not listen.
func TestWhatTheKernelDroppedIsFound(t *testing.T) {
	gate := make(chan struct{}, 1)
	n := newNetwork(t, gate)
	gate <- struct{}{}
	n.askedMore(0)
	extra := n.address("192.0.2.200/24")
	require.NoError(t, n.AddrAdd(n.link, n.address("203.0.113.5/24")))
	require.Eventually(t, func() bool { return n.begun.Load() > 1 }, soon, time.Millisecond, "it waits at the gate")
	for range 3000 {
		require.NoError(t, n.AddrAdd(n.link, extra))
		require.NoError(t, n.AddrDel(n.link, extra))
	}
	require.NoError(t, n.AddrDel(n.link, n.address("192.0.2.10/24")))
	require.NoError(t, n.lease("192.0.2.77/24", "192.0.2.1"))
	close(gate)
	n.becomes("[192.0.2.77]")
	require.Eventually(t, n.clock.HasWaiters, soon, time.Millisecond, "the kernel says that it has dropped some")

	require.NoError(t, n.RouteReplace(n.outwards("203.0.113.1"))) // while nobody listens
	n.clock.Step(firstPause)
	n.becomes("[203.0.113.5]")
	asked := n.asked.Load()
	require.NoError(t, n.AddrDel(n.link, n.address("192.0.2.77/24")))
	n.askedMore(asked)
	require.False(t, n.clock.HasWaiters(), "it listens again")
}

func TestOnlyWhatMayMatterIsAskedAfter(t *testing.T) {
	address := func(scope uint8) syscall.NetlinkMessage {
		message := nl.NewIfAddrmsg(unix.AF_INET6)
		message.Scope = scope
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWADDR}, Data: message.Serialize()}
	}
	route := func(table uint8, to string) syscall.NetlinkMessage {
		message := nl.NewRtMsg()
		message.Table = table
		data := message.Serialize()
		if to != "" {
			data = append(data, nl.NewRtAttr(unix.RTA_DST, net.ParseIP(to)).Serialize()...)
		}
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_DELROUTE}, Data: data}
	}
	for name, c := range map[string]struct {
		message syscall.NetlinkMessage
		matters bool
	}{
		"an address":                 {address(unix.RT_SCOPE_UNIVERSE), true},
		"one of a site":              {address(unix.RT_SCOPE_SITE), true},
		"a link's own":               {address(unix.RT_SCOPE_LINK), false},
		"the way out":                {route(unix.RT_TABLE_MAIN, ""), true},
		"a route":                    {route(unix.RT_TABLE_MAIN, "2001:db8::"), true},
		"one of another table":       {route(100, "2001:db8::"), true},
		"one to a link's own":        {route(unix.RT_TABLE_MAIN, "fe80::"), false},
		"the kernel's to an address": {route(unix.RT_TABLE_LOCAL, "2001:db8::1"), false},
		"cut short":                  {syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWADDR}, Data: []byte{1}}, false},
		"a link":                     {syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}, Data: make([]byte, 64)}, false},
	} {
		require.Equal(t, c.matters, matters(c.message), name)
	}
}

func TestFollowerNeedsItsParts(t *testing.T) {
	_, err := New(Deps{})
	require.ErrorContains(t, err, "Deps.Find")
}
