// Package testnet gives tests networks for their Pods that nothing else on the machine uses: neither a concurrent test, in
// whatever network namespace, nor a network interface, such as a VPN's or one of a killed test.
package testnet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/netns"
)

// Size is how many networks a test is given at once.
const Size = 4

// first is the second byte of the first network, count the number of tests that can have networks at the same time. Private
// networks in use are mostly below.
const first, count = 100, (256 - first) / Size

// Claim returns the second byte N of Size networks 10.N.0.0/16 to 10.N+Size-1.0.0/16. They are the test's until it ends.
func Claim(t testing.TB) int {
	t.Helper()
	path := filepath.Join(os.TempDir(), fmt.Sprintf("berth-test-networks-%d.lock", os.Getuid()))
	claim, release, err := claimFrom(path, rand.IntN(count), networksInUse)
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
// kernel still tracks for one test do not affect the next. A claim is a lock of one byte of the file, which tests in other
// network namespaces see, too; inUse lists the networks of the interfaces of this one.
func claimFrom(path string, start int, inUse func() ([]netip.Prefix, error)) (claim int, release func() error, err error) {
	locks, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, nil, fmt.Errorf("claim networks for a test: %w", err)
	}
	for i := range count {
		claim := first + (start+i)%count*Size
		// The kernel releases the lock when the process ends. The interfaces are checked afterwards, because a killed
		// test may have left some.
		err := lockByte(locks, claim, unix.F_WRLCK)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		var networks []netip.Prefix
		if err == nil {
			networks, err = inUse()
		}
		if err == nil && isFree(claim, networks) {
			return claim, locks.Close, nil
		}
		if err = errors.Join(err, lockByte(locks, claim, unix.F_UNLCK)); err != nil {
			return 0, nil, errors.Join(fmt.Errorf("claim the networks from %s for a test: %w", Prefix(claim), err), locks.Close())
		}
	}
	return 0, nil, errors.Join(fmt.Errorf("no %d networks between %s and %s are free for a test: berth doctor --fix removes leftovers of killed clusters",
		Size, Prefix(first), Prefix(first+count*Size-1)), locks.Close())
}

// lockByte locks or unlocks one byte of the file for this opening of it, without waiting.
func lockByte(file *os.File, at int, kind int16) error {
	return unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: int64(at), Len: 1})
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

// InNew calls a function in a new network namespace, in which nothing is but a loopback interface that is down; it needs root. Programs that
// the function starts run there, too, but not its goroutines.
func InNew(t testing.TB, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root: run the tests as root")
	}
	if err := netns.OnThread(t.Name(), func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		do()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// inNamespaces is set in a process that RunInNew has started.
const inNamespaces = "BERTH_TEST_IN_NEW_NETWORK"

// RunInNew runs the calling test again in a process with a new network namespace, where all of its goroutines are, and a mount namespace. It
// returns true when that process has passed, and false in it. It needs root.
func RunInNew(t *testing.T) (passed bool) {
	t.Helper()
	if os.Getenv(inNamespaces) != "" {
		return false
	}
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root: run the tests as root")
	}
	// The test's own flags, of which the last one counts.
	args := append(slices.Clone(os.Args[1:]), "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1", "-test.testlogfile=")
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(deadline).String())
	}
	command := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	command.Env = append(os.Environ(), inNamespaces+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	output, err := command.CombinedOutput()
	if err != nil || !bytes.Contains(output, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("in a network namespace of its own: %v\n%s", err, output)
	}
	return true
}
