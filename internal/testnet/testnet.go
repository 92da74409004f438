// Package testnet gives tests networks for their Pods that nothing else on the machine uses: neither a concurrent test, nor
// a network interface, such as a VPN's or one of a killed test.
package testnet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// Size is how many networks a test is given at once.
const Size = 4

// first is the second byte of the first network, count the number of tests that can have networks at the same time. Private
// networks in use are mostly below.
const first, count = 100, (256 - first) / Size

// Claim returns the second byte N of Size networks 10.N.0.0/16 to 10.N+Size-1.0.0/16. They are the test's until it ends.
func Claim(t testing.TB) int {
	t.Helper()
	claim, release, err := claimFrom("@berth-test-network-", rand.IntN(count), networksInUse)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	return claim
}

// Prefix is the network 10.second.0.0/16.
func Prefix(second int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second), 0, 0}), 16)
}

// claimFrom claims the first free networks from the start'th on. Tests start at random, so that connections which the
// kernel still tracks for one test do not affect the next. Claims are abstract sockets whose names begin with locks; inUse
// lists the networks of the machine's interfaces.
func claimFrom(locks string, start int, inUse func() ([]netip.Prefix, error)) (claim int, release func() error, err error) {
	for i := range count {
		claim := first + (start+i)%count*Size
		// The kernel releases the name when the process ends. The interfaces are checked afterwards, because a killed
		// test may have left some.
		lock, err := net.Listen("unix", locks+strconv.Itoa(claim))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, nil, fmt.Errorf("claim the networks from %s for a test: %w", Prefix(claim), err)
		}
		networks, err := inUse()
		if err == nil && isFree(claim, networks) {
			return claim, lock.Close, nil
		}
		if err = errors.Join(err, lock.Close()); err != nil {
			return 0, nil, fmt.Errorf("claim the networks from %s for a test: %w", Prefix(claim), err)
		}
	}
	return 0, nil, fmt.Errorf("no %d networks between %s and %s are free for a test: berth doctor --fix removes leftovers of killed clusters",
		Size, Prefix(first), Prefix(first+count*Size-1))
}

func isFree(claim int, networks []netip.Prefix) bool {
	all := netip.PrefixFrom(Prefix(claim).Addr(), 14) // the Size networks from one whose number Size divides
	return !slices.ContainsFunc(networks, all.Overlaps)
}

// networksInUse returns the IPv4 networks of this machine's interfaces.
func networksInUse() ([]netip.Prefix, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of network interfaces: %w", err)
	}
	var networks []netip.Prefix
	for _, address := range addresses {
		if network, err := netip.ParsePrefix(address.String()); err == nil && network.Addr().Is4() {
			networks = append(networks, network.Masked())
		}
	}
	return networks, nil
}
