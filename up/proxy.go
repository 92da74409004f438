package up

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/freeport"
)

const (
	// proxyName is the name of the component that forwards to Services' endpoints.
	proxyName = "kube-proxy"
	// proxyTable is the nftables table that kube-proxy writes, in the families ip and ip6. Upstream gives no choice, so a
	// network namespace allows one kube-proxy.
	proxyTable = "kube-proxy"
	// bridgeNetfilter makes packets between Pods on the bridge pass through the firewall, which translates the addresses of
	// Services in both directions.
	bridgeNetfilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"
)

// proxyConfig is the configuration of kube-proxy: it reacts to events at once, changes no setting of the kernel, and
// listens on no address but loopback.
func (l Layout) proxyConfig() ([]byte, error) {
	// kube-proxy always serves its health and its metrics, and wants to know the ports.
	health, err := freeport.Loopback()
	if err != nil {
		return nil, err
	}
	metrics, err := freeport.Loopback()
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"clientConnection":   map[string]any{"kubeconfig": l.Kubeconfig(proxyName)},
		"hostnameOverride":   l.NodeName,
		"mode":               "nftables",
		"clusterCIDR":        l.PodCIDR,
		"detectLocalMode":    "BridgeInterface",
		"detectLocal":        map[string]any{"bridgeInterface": l.Bridge()},
		"nodePortAddresses":  []string{l.Gateway.String() + "/32"},
		"healthzBindAddress": net.JoinHostPort("127.0.0.1", strconv.Itoa(health)),
		"metricsBindAddress": net.JoinHostPort("127.0.0.1", strconv.Itoa(metrics)),
		"nftables":           map[string]any{"minSyncPeriod": "5ms", "syncPeriod": "1h"},
		// Zero leaves the kernel's values.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
}

// newProxy returns the component that runs kube-proxy.
func (c *Cluster) newProxy() (runFunc, error) {
	config, err := c.proxyConfig()
	if err != nil {
		return nil, fmt.Errorf("make the configuration of kube-proxy: %w", err)
	}
	file := filepath.Join(c.RunDir, "kube-proxy.json")
	if err := atomicfile.WriteVolatile(file, config, 0o600); err != nil {
		return nil, err
	}
	return program{
		name: proxyName, argv: []string{c.Program("berth-controlplane"), proxyName, "--config", file}, logFile: c.Log(proxyName),
		pidFile: filepath.Join(c.RunDir, proxyName+".pid"),
	}.run, nil
}

// checkProxy fails if this machine lacks what kube-proxy needs.
func checkProxy() error {
	if _, err := exec.LookPath("nft"); err != nil {
		return errors.New("nft not found, which Services need: apt-get install nftables, or start with --without " + proxyName)
	}
	return nil
}

// filterBridge makes packets between Pods of this node pass through the firewall, if the kernel has the module for it:
// loadModules warns if not.
func filterBridge() error {
	if err := os.WriteFile(bridgeNetfilter, []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("let Pods reach Services on the same node: %w", err)
	}
	return nil
}

// lockProxy claims the kube-proxy table of this network namespace until the file is closed. It fails if another cluster or
// a kube-proxy of another origin has it.
func (l Layout) lockProxy(ctx context.Context) (*os.File, error) {
	const advice = "start this cluster with --without " + proxyName + ", or stop the other one"
	path, err := proxyLockPath()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("lock the firewall's table %s: %w", proxyTable, err)
	}
	_, statErr := os.Stat(path)
	file, err := filelock.Acquire(path)
	if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
		owner, _ := os.ReadFile(path) // the message is less specific without it
		return nil, fmt.Errorf("another cluster on this machine forwards to its Services (%s, %s), and kube-proxy allows one in a "+
			"network namespace: %s", bytes.TrimSpace(owner), held.Holder(), advice)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the firewall's table %s: %w", proxyTable, err)
	}
	if errors.Is(statErr, os.ErrNotExist) && hasProxyTable(ctx) {
		return nil, errors.Join(fmt.Errorf("the firewall has a table %s that berth did not create: a kube-proxy of another cluster runs "+
			"on this machine: %s", proxyTable, advice), os.Remove(path), file.Close())
	}
	if err := errors.Join(file.Truncate(0), writeAt(file, l.DataDir+"\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the firewall's table %s: %w", proxyTable, err), file.Close())
	}
	return file, nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// proxyLockPath is the lock of this network namespace. It lies beside the run directories of the clusters.
func proxyLockPath() (string, error) {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &stat); err != nil {
		return "", fmt.Errorf("identify the network namespace: %w", err)
	}
	return filepath.Join("/run/berth", fmt.Sprintf("%s-%d.lock", proxyName, stat.Ino)), nil
}

// hasProxyTable reports whether the firewall has a table of kube-proxy.
func hasProxyTable(ctx context.Context) bool {
	return exec.CommandContext(ctx, "nft", "list", "table", "ip", proxyTable).Run() == nil
}

// removeProxyRules removes the rules of this cluster's kube-proxy from the firewall. It does nothing if the rules are of
// another cluster.
func (l Layout) removeProxyRules(ctx context.Context) error {
	path, err := proxyLockPath()
	if err != nil {
		return err
	}
	owner, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && clusterID(string(bytes.TrimSpace(owner))) != l.ID {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the rules of kube-proxy: %w", err)
	}
	lock, err := filelock.Acquire(path)
	if err != nil {
		return fmt.Errorf("remove the rules of kube-proxy: %w", err)
	}
	defer lock.Close()
	// Adding a table first makes it no error that it does not exist.
	var script strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		fmt.Fprintf(&script, "add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n", family, proxyTable)
	}
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("remove the rules of kube-proxy: %w: %s", err, bytes.TrimSpace(out))
	}
	return os.Remove(path)
}
