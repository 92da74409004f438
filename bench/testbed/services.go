package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	proxyName = "kube-proxy"
	dnsName   = "berth-dns"
	dnsPort   = "53"
)

// Services are the processes that make a cluster's Services reachable and their names known.
type Services struct {
	// ProxyPID and DNSPID are kube-proxy and CoreDNS, DNS the address of the latter.
	ProxyPID, DNSPID int
	DNS              string

	stops []func() error
}

// DNSAddress is the address at which the cluster's DNS answers: that of the pod bridge, the first of the Pods' range.
func (u Up) DNSAddress() (string, error) {
	pods, err := netip.ParsePrefix(u.Network.PodCIDR)
	if err != nil {
		return "", fmt.Errorf("pod network: %w", err)
	}
	return net.JoinHostPort(pods.Addr().Next().String(), dnsPort), nil
}

// OwnServices are the processes that a running `berth up` started.
func (u Up) OwnServices(cluster *Process) (*Services, error) {
	children, err := Children(cluster.PID)
	if err != nil {
		return nil, err
	}
	address, err := u.DNSAddress()
	if err != nil {
		return nil, err
	}
	s := &Services{ProxyPID: children[proxyName], DNSPID: children[dnsName], DNS: address}
	if s.ProxyPID == 0 || s.DNSPID == 0 {
		return nil, fmt.Errorf("berth up runs %v: there is no kube-proxy or no DNS", children)
	}
	return s, nil
}

// upstreamCorefile is kubeadm's, without what has no part in an answer: health, ready, prometheus, loop and reload.
const upstreamCorefile = `.:53 {
    bind %s
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig %s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    cache 30 {
        disable success cluster.local
        disable denial cluster.local
    }
    loadbalance
}
`

// UpstreamServices starts the same kube-proxy and the same CoreDNS as `berth up` does, with the defaults of Kubernetes.
func (u Up) UpstreamServices(ctx context.Context) (_ *Services, err error) {
	s := &Services{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.DNS, err = u.DNSAddress(); err != nil {
		return nil, err
	}
	config, err := u.upstreamProxyConfig()
	if err != nil {
		return nil, err
	}
	proxy, err := start(ctx, u.Dir, proxyName, []string{filepath.Join(u.Bin, "berth-controlplane"), proxyName, "--config", config}, nil, nil)
	if err != nil {
		return nil, err
	}
	s.ProxyPID = proxy.PID
	s.stops = append(s.stops, removeProxyTables, proxy.Stop)
	host, _, err := net.SplitHostPort(s.DNS)
	if err != nil {
		return nil, err
	}
	corefile := filepath.Join(u.Dir, "Corefile")
	if err := os.WriteFile(corefile, fmt.Appendf(nil, upstreamCorefile, host, u.componentKubeconfig("dns")), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of CoreDNS: %w", err)
	}
	dns, err := start(ctx, u.Dir, dnsName, []string{filepath.Join(u.Bin, dnsName), "-conf", corefile}, nil, nil)
	if err != nil {
		return nil, err
	}
	s.DNSPID = dns.PID
	s.stops = append(s.stops, dns.Stop)
	return s, nil
}

// upstreamProxyConfig writes a configuration that leaves all times at their defaults.
func (u Up) upstreamProxyConfig() (string, error) {
	var addresses [2]string
	for i := range addresses {
		port, err := freePort()
		if err != nil {
			return "", err
		}
		addresses[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"clientConnection": map[string]any{"kubeconfig": u.componentKubeconfig(proxyName)},
		"hostnameOverride": u.NodeName, "mode": "nftables", "clusterCIDR": u.Network.PodCIDR,
		"healthzBindAddress": addresses[0], "metricsBindAddress": addresses[1],
		// Zero leaves the kernel's values, which are not the benchmark's to change.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(u.Dir, "kube-proxy.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write the configuration of kube-proxy: %w", err)
	}
	return path, nil
}

// removeProxyTables removes the rules of a kube-proxy that has ended.
func removeProxyTables() error {
	var script strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		// Adding a table first makes it no error that there is none.
		fmt.Fprintf(&script, "add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n", family, proxyName)
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("remove the rules of kube-proxy: %w: %s", err, out)
	}
	return nil
}

// Stop stops what UpstreamServices started.
func (s *Services) Stop() error {
	var errs []error
	for i := len(s.stops) - 1; i >= 0; i-- {
		errs = append(errs, s.stops[i]())
	}
	s.stops = nil
	return errors.Join(errs...)
}
