package packetfilter

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	testclock "k8s.io/utils/clock/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inNamespace is set in a process that a test runs in a network namespace of its own.
const inNamespace = "BERTH_TEST_NETWORK_NAMESPACE"

// runInNamespace runs the calling test again in a new network namespace, and returns false there.
func runInNamespace(t *testing.T) (outside bool) {
	t.Helper()
	if os.Getenv(inNamespace) != "" {
		return false
	}
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, program := range []string{"iptables", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs", program)
		}
	}
	command := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), inNamespace+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Unshareflags: 0}
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "--- PASS: "+t.Name())
	return true
}

// sh runs a command line.
func sh(t *testing.T, line string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, output)
	return string(output)
}

// start runs a Manager until the test ends.
func start(t *testing.T, deps Deps) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(deps).Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
}

// requireChains waits until all chains and rules exist.
func requireChains(t *testing.T) {
	t.Helper()
	var saved string
	require.Eventually(t, func() bool {
		output, err := exec.CommandContext(t.Context(), "sh", "-c", "iptables-save; ip6tables-save -t mangle").Output()
		saved = string(output)
		for _, want := range []string{
			"-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL", "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8",
			"! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
		} {
			if strings.Count(saved, want) != 1 {
				return false
			}
		}
		return err == nil && strings.Count(saved, ":KUBE-IPTABLES-HINT") == 2 && strings.Count(saved, ":KUBE-KUBELET-CANARY") == 4
	}, 30*time.Second, 10*time.Millisecond, "%s", saved)
}

// TestChainsAreRestored makes the chains with the real iptables, and flushes them in several ways.
func TestChainsAreRestored(t *testing.T) {
	if runInNamespace(t) {
		return
	}
	if !strings.Contains(sh(t, "iptables --version"), "nf_tables") {
		t.Skip("iptables-legacy has no events")
	}
	log := &bytes.Buffer{}
	start(t, Deps{Logger: slog.New(slog.NewTextHandler(log, nil)), Clock: testclock.NewFakeClock(time.Now())})
	requireChains(t)
	for _, flush := range []string{
		"iptables -F", "iptables -F && iptables -X", "iptables -D INPUT -j KUBE-FIREWALL", "iptables -t mangle -X",
		"nft flush ruleset", "ip6tables -t mangle -X", "iptables -F KUBE-FIREWALL",
	} {
		sh(t, flush)
		requireChains(t)
	}
	start(t, Deps{})
	requireChains(t) // a second kubelet adds nothing
}

// TestLoopbackIsNotReachableFromElsewhere has a neighbour connect to a port of the node's loopback address, through
// route_localnet. Only with the rule it fails.
func TestLoopbackIsNotReachableFromElsewhere(t *testing.T) {
	if runInNamespace(t) {
		return
	}
	name := fmt.Sprintf("berth-test-%d", os.Getpid())
	sh(t, "ip netns add "+name)
	defer sh(t, "ip netns del "+name)
	sh(t, "ip link set lo up && ip link add node type veth peer name pod netns "+name+
		" && ip addr add 10.7.0.1/24 dev node && ip link set node up && mount -t proc proc /proc"+
		" && for i in all node; do echo 1 > /proc/sys/net/ipv4/conf/$i/route_localnet; echo 0 > /proc/sys/net/ipv4/conf/$i/rp_filter; done")
	inPod := "ip netns exec " + name + " "
	sh(t, inPod+"sh -c 'ip addr add 10.7.0.2/24 dev pod && ip link set pod up && "+
		"for i in all pod; do echo 1 > /proc/sys/net/ipv4/conf/$i/route_localnet; done && ip route add 127.0.0.1 via 10.7.0.1 src 10.7.0.2'")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	})
	defer serving.Wait()
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	connect := func(from string) error {
		return exec.CommandContext(t.Context(), "sh", "-c", from+"timeout 3 bash -c '</dev/tcp/127.0.0.1/"+port+"'").Run()
	}
	require.NoError(t, connect(inPod), "without the rule, route_localnet lets the packets in")
	start(t, Deps{})
	requireChains(t)
	require.Error(t, connect(inPod))
	require.NoError(t, connect(""), "the node itself")
}

// TestMachineWithoutIPTables says so once, and does nothing.
func TestMachineWithoutIPTables(t *testing.T) {
	log := &bytes.Buffer{}
	require.NoError(t, New(Deps{
		Run: func(context.Context, string, ...string) ([]byte, error) { return nil, exec.ErrNotFound },
		Watch: func(context.Context, func()) error {
			require.Fail(t, "nothing to watch")
			return nil
		},
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}).Start(t.Context()))
	require.Contains(t, log.String(), "no working iptables or ip6tables on this machine")
}

// script is an iptables that keeps chains and rules in memory.
type script struct {
	version string

	mu    sync.Mutex
	have  map[string]bool
	fails int
	made  chan string
}

func (s *script) run(_ context.Context, program string, args ...string) ([]byte, error) {
	if args[0] == "--version" {
		return []byte(s.version), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := program + " " + args[3] + " " + strings.Join(args[5:], " ")
	switch args[4] {
	case "-S", "-C":
		if !s.have[key] && args[5] != "POSTROUTING" {
			return nil, errors.New("exit status 1")
		}
	default:
		if s.fails > 0 {
			s.fails--
			return []byte("busy"), errors.New("exit status 4")
		}
		s.have[key] = true
		s.made <- key
	}
	return nil, nil
}

// TestLegacyIsChecked checks the chains of iptables-legacy each minute, and retries what fails.
func TestLegacyIsChecked(t *testing.T) {
	s := &script{version: "iptables v1.8.9 (legacy)", have: map[string]bool{}, fails: 1, made: make(chan string, 100)}
	clock := testclock.NewFakeClock(time.Now())
	start(t, Deps{Run: s.run, Clock: clock, Watch: func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }})
	wait := func(period time.Duration, want int) {
		require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
		clock.Step(period)
		for range want {
			<-s.made
		}
	}
	for range 4 { // IPv6 does not wait for IPv4, whose first chain has failed
		<-s.made
	}
	wait(time.Second, 8)
	s.mu.Lock()
	clear(s.have)
	s.mu.Unlock()
	wait(time.Minute, 12)
}

func TestDeletionsOfOthersAreIgnored(t *testing.T) {
	message := func(kind int, family byte, attributes map[int]string) []byte {
		body := []byte{family, 0, 0, 0}
		for _, id := range []int{1, 2, 3} {
			value, ok := attributes[id]
			if !ok {
				continue
			}
			one := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)+1))
			one = append(binary.NativeEndian.AppendUint16(one, uint16(id)), value+"\x00"...)
			body = append(body, append(one, make([]byte, align(len(one))-len(one))...)...)
		}
		header := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
		header = binary.NativeEndian.AppendUint16(header, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|kind))
		return append(append(header, make([]byte, 10)...), body...)
	}
	const chainDeleted, ruleDeleted, tableDeleted = unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELTABLE
	for name, test := range map[string]struct {
		message []byte
		want    bool
	}{
		"our chain":          {message(chainDeleted, unix.AF_INET, map[int]string{1: "mangle", 3: "KUBE-IPTABLES-HINT"}), true},
		"IPv6":               {message(chainDeleted, unix.AF_INET6, map[int]string{1: "mangle", 3: "KUBE-KUBELET-CANARY"}), true},
		"our rule":           {message(ruleDeleted, unix.AF_INET, map[int]string{1: "filter", 2: "INPUT"}), true},
		"a table of ours":    {message(tableDeleted, unix.AF_INET, map[int]string{1: "nat"}), true},
		"another chain":      {message(chainDeleted, unix.AF_INET, map[int]string{1: "nat", 3: "KUBE-SVC-X"}), false},
		"a rule of services": {message(ruleDeleted, unix.AF_INET, map[int]string{1: "nat", 2: "KUBE-SERVICES"}), false},
		"another table":      {message(tableDeleted, unix.AF_INET, map[int]string{1: "kube-proxy"}), false},
		"another family":     {message(tableDeleted, 7, map[int]string{1: "nat"}), false},
		"a new chain":        {message(unix.NFT_MSG_NEWCHAIN, unix.AF_INET, map[int]string{1: "mangle", 3: "KUBE-IPTABLES-HINT"}), false},
		"cut off":            {message(chainDeleted, unix.AF_INET, map[int]string{1: "mangle", 3: "KUBE-IPTABLES-HINT"})[:30], false},
		"empty":              {nil, false},
	} {
		require.Equal(t, test.want, anyDeleted(test.message), name)
		other := message(unix.NFT_MSG_NEWRULE, unix.AF_INET, map[int]string{1: "nat"})
		require.Equal(t, test.want, anyDeleted(append(other, test.message...)), "%s, as the second one", name)
	}
}
