//go:build integration

package integration

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestPodsKeepTheirAddresses attacks from a Pod that may send any packet: it claims the address of another Pod by ARP and connects to the loopback of the machine. Each attack works without the rules, and fails with them.
func TestPodsKeepTheirAddresses(t *testing.T) {
	c := newClusterWithServices(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(podManifest("victim", shell("sleep 1000", ""), ""))
	c.apply(podManifest("attacker", shell("sleep 1000", `"securityContext": {"privileged": true}`), ""))
	victim := c.waitPod("name=victim", "ready", isReady)
	c.waitPod("name=attacker", "ready", isReady)
	bridge := "berth" + c.id()
	table, err := exec.CommandContext(t.Context(), "nft", "list", "table", "bridge", bridge).Output()
	require.NoError(t, err)
	require.Contains(t, string(table), victim.Status.PodIP)
	loopback, err := exec.CommandContext(t.Context(), "nft", "list", "table", "ip", bridge).Output()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+bridge+"/route_localnet", []byte("1"), 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)

	attack := func() (arp, local bool) {
		t.Helper()
		c.reachesByPing(t, victim)
		in := func(script string) (string, error) {
			return c.run("kubectl", "exec", "attacker", "--", "/bin/busybox", "sh", "-c", strings.ReplaceAll(script, "busybox", "/bin/busybox"))
		}
		before := neighbour(t, bridge, victim.Status.PodIP)
		_, err := in("busybox ip addr add " + victim.Status.PodIP + "/32 dev eth0; busybox arping -U -c 2 -I eth0 " + victim.Status.PodIP)
		t.Log(err) // the program fails where it gets no response
		arp = neighbour(t, bridge, victim.Status.PodIP) != before
		_, err = in("busybox ip addr del " + victim.Status.PodIP + "/32 dev eth0")
		require.NoError(t, err)
		_, err = in("busybox ip route del table local local 127.0.0.0/8 dev lo; busybox ip addr del 127.0.0.1/8 dev lo; " +
			"busybox ip route replace 127.0.0.0/8 via " + c.gateway() + "; busybox nc -w 2 127.0.0.1 " + port + " < /dev/null")
		return arp, err == nil
	}
	arp, local := attack()
	require.False(t, arp, "the machine believes a Pod that claims the address of another")
	require.False(t, local, "a Pod reaches the loopback of the machine")

	for _, family := range []string{"bridge", "ip"} {
		require.NoError(t, exec.CommandContext(t.Context(), "nft", "delete", "table", family, bridge).Run())
	}
	arp, local = attack()
	require.True(t, arp, "without the rules the attack works")
	require.True(t, local, "without the rules the attack works")
	restore := exec.CommandContext(t.Context(), "nft", "-f", "-")
	restore.Stdin = strings.NewReader(string(table) + string(loopback))
	require.NoError(t, restore.Run())
	c.stop()
	require.Empty(t, c.leftovers())
	require.Error(t, exec.CommandContext(t.Context(), "nft", "list", "table", "bridge", bridge).Run(), "the rules are removed")
}

// reachesByPing lets the machine learn the hardware address of the Pod.
func (c *cluster) reachesByPing(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	require.NoError(t, c.poll(func(ctx context.Context) bool {
		return exec.CommandContext(ctx, "/bin/busybox", "ping", "-c", "1", "-W", "1", pod.Status.PodIP).Run() == nil
	}))
}

// neighbour is the hardware address that the machine has for an address on the bridge.
func neighbour(t *testing.T, bridge, address string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", "neigh", "show", address, "dev", bridge).Output()
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(out), "lladdr ")
	card, _, _ := strings.Cut(rest, " ")
	return card
}
