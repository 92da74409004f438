package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Up is a cluster of `berth up`.
type Up struct {
	// Bin holds Berth's programs, Dir the cluster's files.
	Bin, Dir string
	// Network is the cluster's; it makes its bridge itself.
	Network Network
	// NodeName is the name of its node.
	NodeName string
}

// Start runs `berth up` and returns when it reports the node ready.
func (u Up) Start(ctx context.Context) (*Process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	argv := []string{
		filepath.Join(u.Bin, "berth"), "up", "--data-dir", filepath.Join(u.Dir, "data"), "--node-name", u.NodeName,
		"--pod-cidr", u.Network.PodCIDR, "--service-cidr", u.Network.ServiceCIDR, "--api-port", strconv.Itoa(port),
		"--without", "kube-proxy,dns", // the baseline has none, and a network namespace allows one kube-proxy
	}
	return startAndWait(ctx, u.Dir, "up", argv, func(line string) bool {
		fields := strings.Fields(line)
		return len(fields) > 2 && fields[0] == "node" && fields[2] == "ready"
	})
}

// Children are the processes that a process has started, by the names of their programs.
func Children(pid int) (map[string]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := make(map[string]int)
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue // it has ended meanwhile
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		// The name in stat ends after 15 bytes.
		program, err := os.Readlink(filepath.Join("/proc", entry.Name(), "exe"))
		if err != nil {
			continue
		}
		children[filepath.Base(program)] = child
	}
	return children, nil
}
