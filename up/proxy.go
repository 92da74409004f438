package up

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/freeport"
	"github.com/berth-dev/berth/up/supervisor"
)

const (
	// proxyName is the name of the component that forwards to Services' endpoints.
	proxyName = "kube-proxy"
	// proxyTable is the nftables table that kube-proxy writes, in the families ip and ip6. Upstream gives no choice, so a
	// network namespace allows one kube-proxy.
	proxyTable = "kube-proxy"
	// proxyHealthPort and proxyMetricsPort are the ports that kube-proxy has everywhere, as far as they are free.
	proxyHealthPort, proxyMetricsPort = 10256, 10249
	// bridgeNetfilter makes packets between Pods on the bridge pass through the firewall, which translates the addresses of
	// Services in both directions.
	bridgeNetfilter  = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	bridgeNetfilter6 = "/proc/sys/net/bridge/bridge-nf-call-ip6tables"
)

// closeWaitTimeout is how long the kernel remembers a connection that one side has closed while nothing is sent, kube-proxy's
// default: an application may write the rest of a long response after that time. The kernel's own value is a minute; then such a
// connection through a Service ends without a notice. closeWaitSetting is the setting, which is one of the network namespace.
const (
	closeWaitTimeout = time.Hour
	closeWaitSetting = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
)

// closeWait returns the value for kube-proxy to set, zero for none: a longer time that someone chose stays, and kube-proxy does
// not start if it cannot write the setting.
func closeWait(setting string) time.Duration {
	file, err := os.OpenFile(setting, os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	if err != nil {
		return 0
	}
	seconds, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || time.Duration(seconds)*time.Second >= closeWaitTimeout {
		return 0
	}
	return closeWaitTimeout
}

// proxyConfig is the configuration of kube-proxy: it reacts to events at once, changes no setting of the kernel but
// closeWaitSetting, and listens on no address but loopback. metrics is the address of its metrics.
func (c *Cluster) proxyConfig() (config []byte, metrics string, err error) {
	// kube-proxy always serves its health and its metrics, and wants to know the ports. Tools know it by the usual ones.
	var addresses [2]string
	for i, usual := range []int{proxyHealthPort, proxyMetricsPort} {
		port, err := freeport.Prefer(usual)
		if err != nil {
			return nil, "", err
		}
		addresses[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	values := map[string]any{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"clientConnection":   map[string]any{"kubeconfig": c.Kubeconfig(proxyName)},
		"hostnameOverride":   c.NodeName,
		"mode":               "nftables",
		"clusterCIDR":        c.PodCIDR,
		"detectLocalMode":    "BridgeInterface",
		"detectLocal":        map[string]any{"bridgeInterface": c.Bridge()},
		"nodePortAddresses":  c.nodePortAddresses(),
		"healthzBindAddress": addresses[0],
		"metricsBindAddress": addresses[1],
		// Rules that could not be written are written again after syncPeriod; it has no other effect.
		"nftables": map[string]any{"minSyncPeriod": "5ms", "syncPeriod": "5s"},
		// Zero leaves the kernel's values.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s",
			"tcpCloseWaitTimeout": closeWait(closeWaitSetting).String()},
	}
	if c.ExternalRuntime { // its Pods' interfaces are unknown
		values["detectLocalMode"], values["detectLocal"] = "ClusterCIDR", map[string]any{}
	}
	config, err = json.Marshal(values)
	return config, addresses[1], err
}

// proxyConfigPath is the path of kube-proxy's configuration.
func (l Layout) proxyConfigPath() string { return filepath.Join(l.RunDir, "kube-proxy.json") }

// nodePortAddresses are the addresses at which Services have their node ports: the pod bridge's, the Node's, and that at which
// the machine reaches an isolated cluster.
func (c *Cluster) nodePortAddresses() []string {
	if c.Server != "" {
		return []string{"primary"} // kube-proxy's word for the Node's address, whose changes it follows
	}
	all := append(c.gateways(), c.NodeIP(), c.NodeIP6())
	if c.config.Inside != nil {
		all = append(all, c.config.Inside.Address, c.config.Inside.Address6)
	}
	var addresses []string
	for _, address := range all {
		if !address.IsValid() {
			continue
		}
		if text := netip.PrefixFrom(address, address.BitLen()).String(); !slices.Contains(addresses, text) {
			addresses = append(addresses, text)
		}
	}
	return addresses
}

// newProxy returns the component that runs kube-proxy.
func (c *Cluster) newProxy() (runFunc, error) {
	if c.adopted(proxyName) {
		c.servicesReady[proxyName].set(nil)
		return guardProxyTables(c.program(supervisor.Program{Name: proxyName}), true, c.logger), nil
	}
	config, metrics, err := c.proxyConfig()
	if err != nil {
		return nil, fmt.Errorf("make the configuration of kube-proxy: %w", err)
	}
	file := c.proxyConfigPath()
	if err := atomicfile.WriteVolatile(file, config, 0o600); err != nil {
		return nil, err
	}
	environment, err := c.proxyEnvironment()
	if err != nil {
		return nil, err
	}
	health := &supervisor.Health{
		Network: "tcp", Address: metrics, Send: []byte("GET /livez HTTP/1.0\r\n\r\n"), Timeout: healthTimeout, Failures: maxHealthFailures,
	}
	run := c.program(supervisor.Program{
		Name: proxyName, Argv: []string{c.Program("berth-controlplane"), proxyName, "--config", file}, Env: environment, Health: health,
	})
	return c.withReadiness(proxyName, proxyReady(metrics), guardProxyTables(run, false, c.logger)), nil
}

// proxyMetrics serves the metrics of this machine's kube-proxy, which serves them on loopback, to those who may read the kubelet's.
func (c *Cluster) proxyMetrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(c.proxyConfigPath())
		var config struct{ MetricsBindAddress string }
		if err == nil {
			err = json.Unmarshal(data, &config)
		}
		if err != nil {
			http.Error(w, "kube-proxy does not run yet: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		target := &url.URL{Scheme: "http", Host: config.MetricsBindAddress, Path: "/metrics"}
		// An HTTP proxy of the environment must not see it.
		transport := &http.Transport{Proxy: nil, DisableKeepAlives: true}
		(&httputil.ReverseProxy{Transport: transport, Rewrite: func(request *httputil.ProxyRequest) {
			request.Out.URL, request.Out.Host = target, ""
			for name := range request.Out.Header {
				if name != "Accept" && name != "Accept-Encoding" {
					request.Out.Header.Del(name) // kube-proxy needs no credentials
				}
			}
		}}).ServeHTTP(w, r)
	})
}

// filterBridge makes packets between Pods of this node pass through the firewall, if the kernel has the module for it:
// loadModules warns if not.
func filterBridge() error {
	for _, setting := range []string{bridgeNetfilter, bridgeNetfilter6} {
		if err := os.WriteFile(setting, []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("let Pods reach Services on the same node: %w", err)
		}
	}
	return nil
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
