//go:build integration

package integration

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/netns"
)

// TestServicesOfBothFamilies runs a cluster of two machines with IPv4 and IPv6: Nodes and Pods have two addresses, a Service is served
// over both, from Pods and from the machine, also by SCTP, Pods of different machines reach each other, other machines see the machines'
// addresses, and a Pod keeps to its own IPv6 address.
func TestServicesOfBothFamilies(t *testing.T) {
	c := newClusterWithServices(t)
	for flag, network := range map[string]string{"--pod-cidr": fmt.Sprintf("fd00:%x::/56", c.network), "--service-cidr": fmt.Sprintf("fd00:%x::/112", c.network+1)} {
		c.args[slices.Index(c.args, flag)+1] += "," + network
	}
	h := newHub6(t, c)
	outside := h.connect(200)
	c.up("--unsafe-no-fsync", "--api-address", h.address(1)+","+h.address6(1))
	importShell(t, c)
	m := newMember(t, h, c, 1)
	m.start(c.joinArguments()...)
	importShell(t, m.cluster)
	node, err := c.client().CoreV1().Nodes().Get(t.Context(), homeNode, metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, node.Spec.PodCIDRs, 2)
	require.Equal(t, fmt.Sprintf("fd00:%x::/64", c.network), node.Spec.PodCIDRs[1])
	require.Contains(t, c.mustRun("kubectl", "get", "node", homeNode, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`),
		h.address6(1))

	on := func(node, manifest string) string {
		return strings.Replace(manifest, `"spec": {`, `"spec": {"nodeName": "`+node+`",`, 1)
	}
	c.apply(on(homeNode, serverPod("server", "server", "mkdir /w; echo served > /w/index.html; exec /bin/busybox httpd -f -p 8080 -h /w")))
	c.apply(serviceManifest("server", `"type": "NodePort", "ipFamilyPolicy": "PreferDualStack", "selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]`))
	c.apply(on(m.name, serverPod("far", "far", "mkdir /w; echo far > /w/index.html; exec /bin/busybox httpd -f -p 8080 -h /w")))
	c.apply(on(homeNode, serverPod("client", "client", "exec /bin/busybox sleep 1000")))
	pod := c.waitPod("app=server", "ready", isReady)
	require.Len(t, pod.Status.PodIPs, 2)
	client := c.waitPod("app=client", "ready", isReady)
	service, err := c.client().CoreV1().Services("default").Get(t.Context(), "server", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, service.Spec.ClusterIPs, 2)

	for _, address := range service.Spec.ClusterIPs {
		t.Run("by "+address, func(t *testing.T) {
			url := "http://" + net.JoinHostPort(address, "80")
			require.Equal(t, "served", c.wget(t, "client", url))
			// A machine without an IPv6 default route cannot: docs/nodes.md, IPv4 and IPv6.
			if _, err := netlink.RouteGet(net.ParseIP(address)); err == nil || net.ParseIP(address).To4() != nil {
				require.Equal(t, "served", strings.TrimSpace(get(t, url)), "from the machine")
			}
		})
	}
	t.Run("by node port", func(t *testing.T) {
		for _, address := range []string{c.gateway(), fmt.Sprintf("fd00:%x::1", c.network), h.address6(1)} {
			require.Equal(t, "served", strings.TrimSpace(get(t, "http://"+net.JoinHostPort(address, fmt.Sprint(service.Spec.Ports[0].NodePort)))))
		}
	})
	farPod := c.waitPod("app=far", "ready", isReady)
	t.Run("across machines", func(t *testing.T) {
		for _, ip := range farPod.Status.PodIPs {
			require.Equal(t, "far", c.wget(t, "client", "http://"+net.JoinHostPort(ip.IP, "8080")))
		}
		for _, address := range service.Spec.ClusterIPs {
			require.Equal(t, "served", c.wget(t, "far", "http://"+net.JoinHostPort(address, "80")))
		}
	})
	t.Run("by SCTP", func(t *testing.T) {
		c.apply(serviceManifest("sctp", `"ipFamilyPolicy": "RequireDualStack", "selector": {"app": "far"}, "ports": [{"protocol": "SCTP", "port": 132, "targetPort": 8132}]`))
		found, err := c.client().CoreV1().Services("default").Get(t.Context(), "sctp", metav1.GetOptions{})
		require.NoError(t, err)
		for _, address := range found.Spec.ClusterIPs {
			c.checkSCTP(t, client, farPod, address, 132, 8132)
		}
	})
	t.Run("to another machine", func(t *testing.T) {
		// That machine has no route to Pods.
		require.Equal(t, h.address6(1), c.seenBy(t, outside, "client", h.address6(200)))
		require.Equal(t, h.address6(2), c.seenBy(t, outside, "far", h.address6(200)))
	})
	t.Run("by name", func(t *testing.T) {
		dns, err := c.client().CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
		require.NoError(t, err)
		require.Len(t, dns.Spec.ClusterIPs, 2)
		for _, server := range dns.Spec.ClusterIPs {
			for _, pod := range []string{"client", "far"} {
				out := c.mustRun("kubectl", "exec", pod, "--", "/bin/busybox", "nslookup", "server.default.svc.cluster.local", server)
				require.Contains(t, out, service.Spec.ClusterIPs[1])
			}
		}
		found, err := c.resolver().LookupHost(t.Context(), "server.default.svc.cluster.local")
		require.NoError(t, err)
		require.ElementsMatch(t, service.Spec.ClusterIPs, found)
	})
	t.Run("a Pod keeps to its own address", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), "nft", "list", "set", "bridge", "berth"+c.id(), "addresses6").Output()
		require.NoError(t, err)
		require.Contains(t, string(out), client.Status.PodIPs[1].IP)
	})
	m.stop()
	require.Empty(t, m.leftovers())
	out, err := inside(m.namespace, "ip", "-6", "route").Output()
	require.NoError(t, err)
	require.NotContains(t, string(out), "proto 137")
	c.stop()
	require.Empty(t, c.leftovers())
	require.NotContains(t, ruleset(t), "berth"+c.id())
}

// wget returns what a Pod gets from a URL, once it is served.
func (c *cluster) wget(t *testing.T, pod, url string) string {
	t.Helper()
	var out string
	var err error
	require.NoError(t, c.poll(func(context.Context) bool {
		out, err = c.run("kubectl", "exec", pod, "--", "/bin/busybox", "wget", "-q", "-O", "-", url)
		return err == nil
	}), "%s", out)
	return strings.TrimSpace(out)
}

// seenBy returns the address from which a machine sees a connection of a Pod to its own address.
func (c *cluster) seenBy(t *testing.T, namespace, pod, address string) string {
	t.Helper()
	var listener net.Listener
	require.NoError(t, netns.Do("/run/netns/"+namespace, func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
		return err
	}))
	defer listener.Close()
	seen := make(chan string, 1)
	go func() {
		defer close(seen)
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		host, _, _ := net.SplitHostPort(connection.RemoteAddr().String())
		seen <- host
	}()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	// The server closes the connection, and nc ends.
	c.mustRun("kubectl", "exec", pod, "--", "/bin/busybox", "nc", "-w", "10", address, port)
	require.NoError(t, listener.Close())
	return <-seen
}
