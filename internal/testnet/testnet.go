// Package testnet gives tests networks for their Pods that nobody else on the machine has: neither another test, of this
// run or of one beside it, nor an interface, be it of somebody's VPN or of a test run that was killed.
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

// first is the second byte of the first that is given, count how often a test can be given some at the same time. Private
// networks that people have are mostly below.
const first, count = 100, (256 - first) / Size

// Claim returns the second byte N of Size networks 10.N.0.0/16 to 10.N+Size-1.0.0/16 that are the test's until it ends.
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

// claimFrom claims the first networks from the start'th on that nobody has. Tests start anywhere, so that what the kernel still
// knows of connections of one is not in the way of the next. locks begins the names of the sockets that are the claims,
// inUse lists the networks of the machine's interfaces.
func claimFrom(locks string, start int, inUse func() ([]netip.Prefix, error)) (claim int, release func() error, err error) {
	for i := range count {
		claim := first + (start+i)%count*Size
		// The name goes with the process, however that ends. Whoever has it looks at the interfaces then: what a test
		// left that was killed counts as long as it is there.
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
	return 0, nil, fmt.Errorf("no %d networks between %s and %s are free for a test: berth doctor --fix takes away what killed clusters left",
		Size, Prefix(first), Prefix(first+count*Size-1))
}

func isFree(claim int, networks []netip.Prefix) bool {
	all := netip.PrefixFrom(Prefix(claim).Addr(), 14) // the Size networks from one whose number Size divides
	return !slices.ContainsFunc(networks, all.Overlaps)
}

// networksInUse are the IPv4 networks of this machine's interfaces.
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
