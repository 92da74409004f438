//go:build integration

package integration

import (
	"context"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestPodsKeepTheirAddresses attacks from a Pod that may send any packet: it claims the address of another Pod by ARP. That works without the rules, and fails with them.
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

	attack := func() (arp bool) {
		t.Helper()
		c.reachesByPing(t, victim)
		in := func(script string) (string, error) {
			return c.run("kubectl", "exec", "attacker", "--", "/bin/busybox", "sh", "-c", strings.ReplaceAll(script, "busybox", "/bin/busybox"))
		}
		before := neighbour(t, bridge, victim.Status.PodIP)
		out, err := in("busybox ip addr add " + victim.Status.PodIP + "/32 dev eth0; busybox arping -U -c 2 -s " +
			victim.Status.PodIP + " -I eth0 " + c.gateway())
		t.Log(out, err) // the program fails where it gets no response
		t.Logf("the machine had %s and has %s", before, neighbour(t, bridge, victim.Status.PodIP))
		arp = neighbour(t, bridge, victim.Status.PodIP) != before
		_, err = in("busybox ip addr del " + victim.Status.PodIP + "/32 dev eth0")
		require.NoError(t, err)
		return arp
	}
	arp := attack()
	require.False(t, arp, "the machine believes a Pod that claims the address of another")

	require.NoError(t, exec.CommandContext(t.Context(), "nft", "flush", "chain", "bridge", bridge, "prerouting").Run())
	arp = attack()
	require.True(t, arp, "without the rules the attack works")

	// What removes whole tables does not know that they are of a cluster, which makes them again with the Pods that run.
	for family, want := range map[string]string{"bridge": string(table), "ip": string(loopback)} {
		require.NoError(t, exec.CommandContext(t.Context(), "nft", "delete", "table", family, bridge).Run())
		require.EventuallyWithT(t, func(now *assert.CollectT) {
			found, err := exec.CommandContext(t.Context(), "nft", "list", "table", family, bridge).Output()
			require.NoError(now, err)
			require.Equal(now, withoutCounts(want), withoutCounts(string(found)))
		}, waitTimeout, 10*time.Millisecond)
	}
	arp = attack()
	require.False(t, arp, "the tables were made again")
	c.stop()
	require.Empty(t, c.leftovers())
	require.Error(t, exec.CommandContext(t.Context(), "nft", "list", "table", "bridge", bridge).Run(), "the rules are removed")
}

// withoutCounts is a table as nft lists it, without what its rules have counted and in which order it has the members of sets.
func withoutCounts(table string) string {
	words := strings.Fields(regexp.MustCompile(`packets \d+ bytes \d+`).ReplaceAllString(strings.ReplaceAll(table, ",", " "), ""))
	slices.Sort(words)
	return strings.Join(words, " ")
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
