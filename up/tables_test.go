package up

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/testnet"
	"github.com/berth-dev/berth/up/addressfilter"
	"github.com/berth-dev/berth/up/containerd"
)

// TestKubeProxyIsStartedAgainWithoutItsTables has the real nft, in a network of its own.
func TestKubeProxyIsStartedAgainWithoutItsTables(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	if testnet.RunInNew(t) {
		return
	}
	nft := func(script string) {
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", script, out)
	}
	const tables = "add table ip kube-proxy\nadd table ip6 kube-proxy\nadd table ip other\nadd chain ip kube-proxy services\n"
	start := func(adopted bool) (ended chan error, stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended = make(chan error, 1)
		guarded := guardProxyTables(func(ctx context.Context) error { <-ctx.Done(); return nil }, adopted, slog.New(slog.DiscardHandler))
		go func() { ended <- guarded(ctx) }()
		return ended, cancel
	}
	for name, removal := range map[string]string{
		"all tables": "flush ruleset", "that of IPv4": "delete table ip kube-proxy", "that of IPv6": "delete table ip6 kube-proxy",
	} {
		nft(tables)
		ended, stop := start(true)
		// What concerns others, and a table that is made again at once, change nothing.
		nft("delete table ip other\ndelete chain ip kube-proxy services\n")
		nft("delete table ip kube-proxy\nadd table ip kube-proxy\n")
		for isRunning := true; isRunning; {
			nft(tables + removal) // the watch may not have begun
			select {
			case err := <-ended:
				require.ErrorIs(t, err, errProxyTablesRemoved, name)
				isRunning = false
			default:
			}
		}
		stop()
	}

	nft("flush ruleset")
	ended, stop := start(true)
	require.ErrorIs(t, <-ended, errProxyTablesRemoved, "it had been running, and they were removed while nothing watched")
	stop()
	ended, stop = start(false)
	stop()
	require.NoError(t, <-ended, "one that has just started has not written them yet")

	failed := errors.New("failed")
	require.ErrorIs(t, guardProxyTables(func(context.Context) error { return failed }, false, slog.New(slog.DiscardHandler))(t.Context()), failed)
}

// TestLostEventsMayBeThoseOfKubeProxysTables has a watch that reports that something was deleted, but not what.
func TestLostEventsMayBeThoseOfKubeProxysTables(t *testing.T) {
	table, other := nftTable{"ip", proxyTable}, nftTable{"ip", "other"}
	removed := removedTables{table: false}
	require.False(t, removed.areMissing(nil), "kube-proxy has not made it yet")
	require.False(t, removed.areMissing(map[nftTable]bool{table: true, other: true}))
	require.True(t, removed.areMissing(map[nftTable]bool{other: true}))
}

// needPrograms skips a test on a machine without the programs.
func needPrograms(t *testing.T, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs ", program)
		}
	}
}

// keepTables runs what makes the cluster's tables again until the test ends.
func keepTables(t *testing.T, c *Cluster) {
	t.Helper()
	keep, err := c.newTables()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- keep(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
}

// TestPodsOfAnEarlierRunAreRestrictedAgain has a Pod that ran on while the cluster was stopped and another program removed all tables.
func TestPodsOfAnEarlierRunAreRestrictedAgain(t *testing.T) {
	needPrograms(t, "nft", "ip")
	if testnet.RunInNew(t) {
		return
	}
	c := &Cluster{Layout: Layout{ID: clusterID(t.TempDir())}, addressFilter: true, clock: clock.RealClock{}, logger: slog.New(slog.DiscardHandler)}
	require.NoError(t, exec.CommandContext(t.Context(), "ip", "link", "add", "pod0", "type", "veth", "peer", "name", "pod1").Run())
	file := strings.ReplaceAll(containerd.Config{Bridge: c.Bridge()}.NetworkCache(), "*", "test")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	t.Cleanup(func() { require.NoError(t, os.Remove(file)) })
	require.NoError(t, os.WriteFile(file, []byte(`{"result": {"cniVersion": "1.0.0", "interfaces": [{"name": "`+c.Bridge()+`"},
		{"name": "pod0"}, {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/c"}],
		"ips": [{"interface": 2, "address": "10.1.0.5/16"}]}}`), 0o600))
	require.NoError(t, addressfilter.Table{Bridge: c.Bridge()}.Install(t.Context()), "the next start writes the table")

	keepTables(t, c)
	require.EventuallyWithT(t, func(now *assert.CollectT) {
		listed, err := exec.CommandContext(t.Context(), "nft", "list", "set", "bridge", c.Bridge(), "addresses").Output()
		require.NoError(now, err)
		require.Contains(now, string(listed), "10.1.0.5")
	}, time.Minute, 10*time.Millisecond)
}

// TestTheMasqueradeOfIPTablesLegacyIsMadeAgain has the real iptables-legacy, which causes no events.
func TestTheMasqueradeOfIPTablesLegacyIsMadeAgain(t *testing.T) {
	legacy, err := exec.LookPath("iptables-legacy")
	if err != nil {
		t.Skip("needs iptables-legacy")
	}
	if testnet.RunInNew(t) {
		return
	}
	dir := t.TempDir()
	require.NoError(t, os.Symlink(legacy, filepath.Join(dir, "iptables")))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	clock := testclock.NewFakeClock(time.Now())
	c := &Cluster{Layout: Layout{ID: clusterID(t.TempDir())}, clock: clock, logger: slog.New(slog.DiscardHandler)}
	c.runtime.Store(&containerd.Config{
		Bridge: c.Bridge(), PodCIDR: netip.MustParsePrefix("10.1.0.0/16"), ClusterMasquerade: true, Machine: containerd.Machine{Firewall: "iptables"},
	})
	keepTables(t, c)
	for range 4 { // at the start, and when the watch of events begins, the rule is checked anyway
		require.EventuallyWithT(t, func(now *assert.CollectT) {
			if clock.HasWaiters() {
				clock.Step(time.Minute)
			}
			listed, err := exec.CommandContext(t.Context(), "iptables", "-t", "nat", "-S").Output()
			require.NoError(now, err)
			require.Contains(now, string(listed), "MASQUERADE")
		}, time.Minute, 10*time.Millisecond)
		require.NoError(t, exec.CommandContext(t.Context(), "iptables", "-t", "nat", "-F").Run())
	}
}

// TestHostPortsAreMadeAgain has a program in the place of the plugin portmap, which makes a table.
func TestHostPortsAreMadeAgain(t *testing.T) {
	needPrograms(t, "nft", "ip")
	if testnet.RunInNew(t) {
		return
	}
	dir := t.TempDir()
	script := `#!/bin/sh
case $CNI_COMMAND in
CHECK) nft list table ip cni_hostport > /dev/null ;;
ADD) nft add table ip cni_hostport ;;
esac
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "portmap"), []byte(script), 0o755))
	require.NoError(t, exec.CommandContext(t.Context(), "ip", "link", "add", "pod0", "type", "veth", "peer", "name", "pod1").Run())
	c := &Cluster{Layout: Layout{ID: clusterID(t.TempDir())}, clock: clock.RealClock{}, logger: slog.New(slog.DiscardHandler)}
	config := containerd.Config{Bridge: c.Bridge(), CNIBinDir: dir}
	c.runtime.Store(&config)
	file := strings.ReplaceAll(config.NetworkCache(), "*", "test")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	t.Cleanup(func() { require.NoError(t, os.Remove(file)) })
	network := base64.StdEncoding.EncodeToString([]byte(`{"cniVersion": "1.0.0", "plugins": [{"capabilities": {"portMappings": true}}]}`))
	require.NoError(t, os.WriteFile(file, []byte(`{"config": "`+network+`", "networkName": "`+c.Bridge()+`", "capabilityArgs": {"portMappings": [{"hostPort": 80}]},
		"result": {"interfaces": [{"name": "pod0"}]}}`), 0o600))

	keepTables(t, c)
	for range 4 { // at the start, and when the watch of events begins, they are checked anyway
		require.EventuallyWithT(t, func(now *assert.CollectT) {
			listed, err := exec.CommandContext(t.Context(), "nft", "list", "tables").Output()
			require.NoError(now, err)
			require.Contains(now, string(listed), "cni_hostport")
		}, time.Minute, 10*time.Millisecond)
		require.NoError(t, exec.CommandContext(t.Context(), "nft", "flush", "ruleset").Run())
	}
}

// TestRulesOfAnEarlierRunAreRemoved has a run without components whose rules an earlier run has left for Pods that run on.
func TestRulesOfAnEarlierRunAreRemoved(t *testing.T) {
	needPrograms(t, "nft", "iptables", "ip6tables")
	if testnet.RunInNew(t) {
		return
	}
	sh := func(line string) string {
		out, err := exec.CommandContext(t.Context(), "sh", "-ec", line).CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
		return string(out)
	}
	c := &Cluster{Layout: Layout{ID: clusterID(t.TempDir())}, clock: clock.RealClock{}, logger: slog.New(slog.DiscardHandler)}
	bridge := c.Bridge()
	firewall := "iptables -N " + bridge + " && iptables -A " + bridge + " -i " + bridge + " -j ACCEPT && iptables -A FORWARD -j " + bridge
	prepare := func(without ...string) {
		c.config.Without, c.addressFilter = without, false
		require.NoError(t, c.prepareTables(t.Context()))
	}
	sh(firewall)
	prepare()
	require.True(t, c.addressFilter)
	require.Contains(t, sh("iptables -S"), bridge, "the component keeps them")
	prepare(firewallName)
	require.NotContains(t, sh("iptables -S"), bridge)
	require.Contains(t, sh("nft list tables"), "table bridge "+bridge)
	sh(firewall)
	prepare(addressFilterName)
	require.Contains(t, sh("iptables -S"), bridge)
	require.NotContains(t, sh("nft list tables"), bridge)
	require.False(t, c.addressFilter)
	prepare(addressFilterName, firewallName)
	require.NotContains(t, sh("nft list ruleset"), bridge)
}
