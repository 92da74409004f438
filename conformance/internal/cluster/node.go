package cluster

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Node is a running `berth node` on another machine of the cluster.
type Node struct {
	*process
	berth, dataDir string
}

// noEviction keeps the node from evicting Pods when the disk, which it shares with the machine, fills up. The first node is
// short of its disk at 2Gi at most.
const noEviction = "--eviction-hard=memory.available<100Mi,nodefs.available<2Gi,nodefs.inodesFree<0%,imagefs.available<2Gi,imagefs.inodesFree<0%"

// Join deletes what an earlier run left in the data directory, joins the machine of the link to the cluster with a new token,
// and returns once its node is ready.
func (c *Cluster) Join(ctx context.Context, link *Link, name, dataDir, log string) (*Node, error) {
	out, err := exec.CommandContext(ctx, c.Berth(), "--data-dir", c.config.DataDir, "token", "create").Output()
	if err != nil {
		return nil, fmt.Errorf("create a token: %w", err)
	}
	// The command that a user would run: its first word is this berth.
	command := strings.Fields(string(out))
	if len(command) < 2 || command[0] != "berth" {
		return nil, fmt.Errorf("create a token: it printed %q", out)
	}
	argv := append(link.enter(), c.Berth())
	argv = append(argv, command[1:]...)
	argv = append(argv, "--reset", noEviction, "--node-name", name, "--node-ip", link.Machine.String(), "--bin-dir", c.config.Bin, "--data-dir", dataDir)
	argv = append(argv, c.config.runtimeFlag()...)
	p, err := startProcess(ctx, "node "+name, log, c.config.Timeout, argv...)
	if err != nil {
		return nil, err
	}
	return &Node{process: p, berth: c.Berth(), dataDir: dataDir}, nil
}

// Import imports the images of an OCI layout into the node.
func (n *Node) Import(ctx context.Context, layout string) error {
	return importImages(ctx, n.berth, n.dataDir, layout)
}

// Registries is the directory of the node's containerd's registry configuration.
func (n *Node) Registries() string { return filepath.Join(n.dataDir, "containerd", "certs.d") }
