package testbed

import (
	"bytes"
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
	// Services is set if it runs kube-proxy and DNS. A network namespace allows one kube-proxy.
	Services bool
	// OnNodeReady is called, if it is not nil, when it reports the node ready. The rest of the cluster may follow.
	OnNodeReady func()
}

// DataDir is the directory of the cluster's files.
func (u Up) DataDir() string { return filepath.Join(u.Dir, "data") }

// Kubeconfig is the path of the administrator's kubeconfig.
func (u Up) Kubeconfig() string { return filepath.Join(u.DataDir(), "admin.kubeconfig") }

// componentKubeconfig is the path of the kubeconfig of one component.
func (u Up) componentKubeconfig(name string) string {
	return filepath.Join(u.DataDir(), "kubeconfigs", name+".kubeconfig")
}

// Start runs `berth up` and returns when it reports that all of the cluster is ready.
func (u Up) Start(ctx context.Context) (*Process, error) {
	return u.start(ctx, func(line string) bool {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "node" && fields[2] == "ready" && u.OnNodeReady != nil {
			u.OnNodeReady()
		}
		return strings.HasPrefix(line, "Kubernetes ") && strings.Contains(line, " is ready after ")
	})
}

// linkLine begins the line of `berth up` with the link to its page, the last word.
const linkLine = "see it"

// StartWithPage runs `berth up` and returns the link to its page, too, which it prints when all runs.
func (u Up) StartWithPage(ctx context.Context) (*Process, string, error) {
	link := make(chan string, 1)
	p, err := u.start(ctx, func(line string) bool {
		fields := strings.Fields(line)
		if !strings.HasPrefix(strings.Join(fields, " "), linkLine) {
			return false
		}
		select {
		case link <- fields[len(fields)-1]:
		default: // a second link, of a restart
		}
		return true
	})
	if err != nil {
		return nil, "", err
	}
	return p, <-link, nil
}

// start runs `berth up` and returns when a line of its output shows that it is ready.
func (u Up) start(ctx context.Context, isReady func(line string) bool) (*Process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	argv := []string{
		filepath.Join(u.Bin, "berth"), "up", "--data-dir", u.DataDir(), "--node-name", u.NodeName,
		"--pod-cidr", u.Network.PodCIDR, "--service-cidr", u.Network.ServiceCIDR, "--api-port", strconv.Itoa(port),
	}
	if !u.Services {
		argv = append(argv, "--without", "kube-proxy,dns")
	}
	return startAndWait(ctx, u.Dir, "up", argv, isReady)
}

// Children are the processes that a process has started, by the names of their programs; kube-proxy, a command of
// berth-controlplane, by its own name.
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
		if name := programOf(entry.Name()); name != "" {
			children[name] = child
		}
	}
	return children, nil
}

// programOf is the name of a process's program, empty if the process has ended.
func programOf(pid string) string {
	// The name in stat ends after 15 bytes.
	program, err := os.Readlink(filepath.Join("/proc", pid, "exe"))
	if err != nil {
		return ""
	}
	command, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
	if err != nil {
		return ""
	}
	if arguments := bytes.Split(command, []byte{0}); len(arguments) > 1 && string(arguments[1]) == proxyName {
		return proxyName
	}
	return filepath.Base(program)
}
