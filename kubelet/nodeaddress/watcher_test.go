package nodeaddress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
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

	"github.com/berth-dev/berth/internal/netns"
	"github.com/berth-dev/berth/internal/rtnetlink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout bounds waits for what happens at once.
const testTimeout = time.Minute

// remoteAddress is a distant address; nothing is sent to it.
const remoteAddress = "198.51.100.1:6443"

// fixture is a network namespace of the test, in which a Watcher runs. Its one link has 192.0.2.10.
type fixture struct {
	*netlink.Handle
	t          *testing.T
	link       netlink.Link
	clock      *clocktesting.FakeClock
	store      *Store
	changed    chan string
	findsBegun atomic.Int64  // calls of find
	findsDone  atomic.Int64  // calls of find that have returned
	gate       chan struct{} // if not nil, find waits for a value
}

func newFixture(t *testing.T, gate chan struct{}) *fixture {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	f := &fixture{
		t: t, clock: clocktesting.NewFakeClock(time.Now()), store: NewStore([]net.IP{net.IPv4(192, 0, 2, 10)}),
		changed: make(chan string, 100), gate: gate,
	}
	ready, done := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- netns.OnThread(t.Name(), func() error { return f.run(ctx, ready) }) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		f.Close()
	})
	require.NoError(t, <-ready)
	return f
}

// run creates the namespace, on a thread that ends with it, and runs the Watcher in it.
func (f *fixture) run(ctx context.Context, ready chan<- error) error {
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		f.Handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err == nil {
		err = f.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "net0"}})
	}
	if err == nil {
		f.link, err = f.LinkByName("net0")
	}
	if err == nil {
		err = errors.Join(f.LinkSetUp(f.link), f.lease("192.0.2.10/24", "192.0.2.1"))
	}
	ready <- err
	if err != nil {
		return err
	}
	watcher, err := New(Deps{
		Store: f.store, Find: f.find, Clock: f.clock, OnChange: func(now []net.IP) { f.changed <- fmt.Sprint(now) },
	})
	if err != nil {
		return err
	}
	return watcher.Start(ctx)
}

// find returns the local address of a route to remoteAddress.
func (f *fixture) find(ctx context.Context) ([]net.IP, error) {
	f.findsBegun.Add(1)
	defer f.findsDone.Add(1)
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	connection, err := (&net.Dialer{}).DialContext(ctx, "udp", remoteAddress)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return []net.IP{connection.LocalAddr().(*net.UDPAddr).IP}, nil
}

func (f *fixture) address(address string) *netlink.Addr {
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		panic(err)
	}
	return parsed
}

// lease does what a DHCP client does with a new lease.
func (f *fixture) lease(address, router string) error {
	return errors.Join(f.AddrAdd(f.link, f.address(address)), f.RouteReplace(f.defaultRoute(router)))
}

// defaultRoute returns the default route through a router.
func (f *fixture) defaultRoute(router string) *netlink.Route {
	return &netlink.Route{LinkIndex: f.link.Attrs().Index, Gw: net.ParseIP(router)}
}

func (f *fixture) requireAddresses(addresses string) {
	f.t.Helper()
	select {
	case got := <-f.changed:
		require.Equal(f.t, addresses, got)
	case <-time.After(testTimeout):
		f.t.Fatalf("OnChange was not called with %s", addresses)
	}
	require.Equal(f.t, addresses, fmt.Sprint(f.store.IPs()))
}

// waitFinds waits until find was called again.
func (f *fixture) waitFinds(than int64) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.findsDone.Load() > than }, testTimeout, time.Millisecond)
}

// TestWatcherFollowsAddressChanges adds an address that is not the node's, replaces the lease, and adds a second
// network with the default route. The clock stands still: only kernel notifications can cause the updates.
func TestWatcherFollowsAddressChanges(t *testing.T) {
	f := newFixture(t, nil)
	f.waitFinds(0)
	finds := f.findsDone.Load()
	require.NoError(t, f.AddrAdd(f.link, f.address("203.0.113.5/24")))
	f.waitFinds(finds)
	require.Empty(t, f.changed, "it is not the one that others see")
	require.NoError(t, f.AddrDel(f.link, f.address("203.0.113.5/24")))

	finds = f.findsDone.Load()
	require.NoError(t, f.AddrDel(f.link, f.address("192.0.2.10/24"))) // with the last address the kernel drops the routes
	f.waitFinds(finds)
	require.Empty(t, f.changed, "an address that is lost is not another one yet")
	require.Equal(t, []string{"192.0.2.10"}, f.store.Strings())
	require.NoError(t, f.lease("192.0.2.77/24", "192.0.2.1"))
	f.requireAddresses("[192.0.2.77]")

	require.NoError(t, f.AddrAdd(f.link, f.address("203.0.113.5/24")))
	require.NoError(t, f.RouteReplace(f.defaultRoute("203.0.113.1")))
	f.requireAddresses("[203.0.113.5]")
	require.Empty(t, f.changed)
	require.False(t, f.clock.HasWaiters())
}

// TestWatcherRecoversFromDroppedMessages causes more changes than the kernel buffers for a slow reader.
func TestWatcherRecoversFromDroppedMessages(t *testing.T) {
	gate := make(chan struct{}, 1)
	f := newFixture(t, gate)
	gate <- struct{}{}
	f.waitFinds(0)
	extra := f.address("192.0.2.200/24")
	require.NoError(t, f.AddrAdd(f.link, f.address("203.0.113.5/24")))
	require.Eventually(t, func() bool { return f.findsBegun.Load() > 1 }, testTimeout, time.Millisecond, "it waits at the gate")
	for range 3000 {
		require.NoError(t, f.AddrAdd(f.link, extra))
		require.NoError(t, f.AddrDel(f.link, extra))
	}
	require.NoError(t, f.AddrDel(f.link, f.address("192.0.2.10/24")))
	require.NoError(t, f.lease("192.0.2.77/24", "192.0.2.1"))
	close(gate)
	f.requireAddresses("[192.0.2.77]")
	require.Eventually(t, f.clock.HasWaiters, testTimeout, time.Millisecond, "the kernel says that it has dropped some")

	require.NoError(t, f.RouteReplace(f.defaultRoute("203.0.113.1"))) // while not subscribed
	f.clock.Step(rtnetlink.MinBackoff)
	f.requireAddresses("[203.0.113.5]")
	finds := f.findsDone.Load()
	require.NoError(t, f.AddrDel(f.link, f.address("192.0.2.77/24")))
	f.waitFinds(finds)
	require.False(t, f.clock.HasWaiters(), "it listens again")
}

func TestRelevant(t *testing.T) {
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
		require.Equal(t, c.matters, relevant(c.message), name)
	}
}

func TestNewRequiresDependencies(t *testing.T) {
	_, err := New(Deps{})
	require.ErrorContains(t, err, "Deps.Store is required")
	_, err = New(Deps{Store: NewStore(nil)})
	require.ErrorContains(t, err, "Deps.Find is required")
}
