package packetfilter

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/iptables"
	"github.com/berth-dev/berth/internal/testnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inNewNetwork runs the calling test again in a network of its own, and returns false there.
func inNewNetwork(t *testing.T) (passed bool) {
	t.Helper()
	for _, program := range []string{"iptables", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs", program)
		}
	}
	return testnet.RunInNew(t)
}

// sh runs a command line.
func sh(t *testing.T, line string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, output)
	return string(output)
}

// start keeps the chains until the test ends.
func start(t *testing.T, deps iptables.Deps) {
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
	}, time.Minute, 10*time.Millisecond, "%s", saved)
}

// TestChainsAreRestored makes the chains with the real iptables, and flushes them in several ways.
func TestChainsAreRestored(t *testing.T) {
	if inNewNetwork(t) {
		return
	}
	if !strings.Contains(sh(t, "iptables --version"), "nf_tables") {
		t.Skip("iptables-legacy has no events")
	}
	log := &bytes.Buffer{}
	start(t, iptables.Deps{Logger: slog.New(slog.NewTextHandler(log, nil)), Clock: testclock.NewFakeClock(time.Now())})
	requireChains(t)
	for _, flush := range []string{
		"iptables -F", "iptables -F && iptables -X", "iptables -D INPUT -j KUBE-FIREWALL", "iptables -t mangle -X",
		"nft flush ruleset", "ip6tables -t mangle -X", "iptables -F KUBE-FIREWALL",
	} {
		sh(t, flush)
		requireChains(t)
	}
	start(t, iptables.Deps{})
	requireChains(t) // a second kubelet adds nothing
}

// TestLoopbackIsNotReachableFromElsewhere has a neighbour connect to a port of the node's loopback address, through
// route_localnet. Only with the rule it fails.
func TestLoopbackIsNotReachableFromElsewhere(t *testing.T) {
	if inNewNetwork(t) {
		return
	}
	name := fmt.Sprintf("berth-test-%d", os.Getpid())
	sh(t, "ip netns add "+name)
	defer sh(t, "ip netns del "+name)
	sh(t, "ip link set lo up && ip link add node type veth peer name pod netns "+name+
		" && ip addr add 10.7.0.1/24 dev node && ip link set node up && mount --make-private /proc && mount -t proc proc /proc"+
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
	start(t, iptables.Deps{})
	requireChains(t)
	require.Error(t, connect(inPod))
	require.NoError(t, connect(""), "the node itself")
}
