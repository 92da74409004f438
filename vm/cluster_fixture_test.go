//go:build vm

package vm

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// clusterShare is where a machine has the programs of a cluster, clusterDir the cluster's directory.
	clusterShare, clusterDir = "/berth", "/var/lib/berth"
	// clusterBerth begins commands for the cluster.
	clusterBerth = clusterShare + "/berth --data-dir " + clusterDir + " "
	// clusterStart is how long a cluster may take to start, in seconds: without KVM it takes some minutes.
	clusterStart = 1800
)

// clusterUnit is the unit that docs/nodes.md recommends, so that the cluster comes up with the machine. It is tried until the machine has the
// host's directory with the programs, which comes after the boot.
const clusterUnit = `[Unit]
Description=Kubernetes on this machine
After=network.target
StartLimitIntervalSec=0
[Service]
RestartSec=1
Environment=HOME=/root
ExecStart=` + clusterBerth + `up --eviction-hard=memory.available<0%,nodefs.available<0%,imagefs.available<0%
KillMode=process
TimeoutStopSec=120
Restart=always
Delegate=yes
TasksMax=infinity
LimitNOFILE=1048576
[Install]
WantedBy=multi-user.target
`

// copyClusterPrograms copies the programs of a cluster beside berth, and what is named besides, into a directory of the host.
func copyClusterPrograms(t *testing.T, dir string, more ...string) {
	t.Helper()
	for _, name := range append([]string{
		"berth-controlplane", "berth-dns", "berth-isolate", "berth-supervisor", "kubectl", "containerd", "containerd-shim-runc-v2",
		"containerd-shim-berth-v1", "runc", "cni", "images",
	}, more...) {
		runHost(t, "cp", "-a", filepath.Join(*programs, name), dir)
	}
}

// startCluster boots a machine with the directory of programs, in which a cluster is a service. It has not started yet.
func startCluster(t *testing.T, dir string, memoryMiB int) *Machine {
	t.Helper()
	m := start(t, Options{Shares: []Share{{Dir: dir, Path: clusterShare}}, Name: "node", MemoryMiB: memoryMiB})
	enableCluster(t, m)
	return m
}

// enableCluster makes the cluster a service of a machine that has its programs.
func enableCluster(t *testing.T, m *Machine) {
	t.Helper()
	require.NoError(t, m.Run(t.Context(), "cat > /etc/systemd/system/berth.service", IO{Stdin: strings.NewReader(clusterUnit)}))
	output(t, m, "systemctl daemon-reload && systemctl -q enable --now berth")
}

// untilCluster gives commands to the cluster, each until it succeeds.
func untilCluster(t *testing.T, m *Machine, commands ...string) {
	t.Helper()
	for _, command := range commands {
		waitFor(t, m, clusterStart, clusterBerth+command)
	}
}
