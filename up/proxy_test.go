package up

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up/isolate"
)

func TestHalfClosedConnectionsLastAnHour(t *testing.T) {
	setting := filepath.Join(t.TempDir(), "nf_conntrack_tcp_timeout_close_wait")
	require.Zero(t, closeWait(setting), "a kernel without the setting")
	for value, want := range map[string]time.Duration{"60\n": time.Hour, "3600\n": 0, "7200\n": 0, "": 0} {
		require.NoError(t, os.WriteFile(setting, []byte(value), 0o600))
		require.Equal(t, want, closeWait(setting), "%q", value)
	}
}

// TestMachineReachesNodePortsOfAnIsolatedCluster hands the cluster over to the node's process, which starts kube-proxy.
func TestMachineReachesNodePortsOfAnIsolatedCluster(t *testing.T) {
	layout, err := NewLayout(Config{PodCIDR: "10.85.0.0/16,fd00:85::/56", ServiceCIDR: "10.86.0.0/16,fd00:86::/112"})
	require.NoError(t, err)
	for _, inside := range []*isolate.Inside{
		{Address: netip.MustParseAddr("198.18.0.2"), Address6: netip.MustParseAddr("fd62:6572:7468::c612:2")},
		{Address: netip.MustParseAddr("198.18.0.2")},
		nil,
	} {
		started := &Cluster{Layout: layout, config: RunConfig{Inside: inside}}
		data, err := json.Marshal(started.handover(false))
		require.NoError(t, err)
		var handover Handover
		require.NoError(t, json.Unmarshal(data, &handover))
		node := &Cluster{Layout: handover.Layout, config: RunConfig{Inside: handover.isolation()}}
		require.Equal(t, started.nodePortAddresses(), node.nodePortAddresses())
		if inside != nil && inside.Address6.IsValid() {
			require.Contains(t, node.nodePortAddresses(), inside.Address6.String()+"/128")
		}
	}
}

// TestProxyInNamespacesOfItsOwnHasNoIptables runs the shell with the environment of kube-proxy.
func TestProxyInNamespacesOfItsOwnHasNoIptables(t *testing.T) {
	c := &Cluster{Layout: Layout{RunDir: t.TempDir()}}
	environment, err := c.proxyEnvironment()
	require.NoError(t, err)
	require.Empty(t, environment, "on the machine an earlier kube-proxy may have left rules of iptables")

	programs := t.TempDir()
	for _, name := range []string{"nft", "iptables"} {
		require.NoError(t, os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"), 0o700))
	}
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	t.Setenv("PATH", programs)
	c.config.Inside = &isolate.Inside{}
	for range 2 { // the component may be started again
		environment, err = c.proxyEnvironment()
		require.NoError(t, err)
	}
	for name, found := range map[string]bool{"nft": true, "iptables": false} {
		command := exec.CommandContext(t.Context(), shell, "-c", "command -v "+name)
		command.Env = environment
		require.Equal(t, found, command.Run() == nil, name)
	}
	t.Setenv("PATH", t.TempDir())
	_, err = c.proxyEnvironment()
	require.ErrorContains(t, err, "install nftables")
}
