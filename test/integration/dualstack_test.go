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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServicesOfBothFamilies runs a cluster with IPv4 and IPv6: the Node and Pods have two addresses, a Service is served over
// both, from Pods and from the machine, and a Pod keeps to its own IPv6 address.
func TestServicesOfBothFamilies(t *testing.T) {
	c := newClusterWithServices(t)
	for flag, network := range map[string]string{"--pod-cidr": fmt.Sprintf("fd00:%x::/56", c.network), "--service-cidr": fmt.Sprintf("fd00:%x::/112", c.network+1)} {
		c.args[slices.Index(c.args, flag)+1] += "," + network
	}
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	node, err := c.client().CoreV1().Nodes().Get(t.Context(), homeNode, metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, node.Spec.PodCIDRs, 2)
	require.Equal(t, fmt.Sprintf("fd00:%x::/64", c.network), node.Spec.PodCIDRs[1])
	require.Contains(t, c.mustRun("kubectl", "get", "node", homeNode, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`),
		fmt.Sprintf("fd00:%x::1", c.network))

	c.apply(serverPod("server", "server", "mkdir /w; echo served > /w/index.html; exec /bin/busybox httpd -f -p 8080 -h /w"))
	c.apply(serviceManifest("server", `"type": "NodePort", "ipFamilyPolicy": "PreferDualStack", "selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]`))
	c.apply(serverPod("client", "client", "exec /bin/busybox sleep 1000"))
	pod := c.waitPod("app=server", "ready", isReady)
	require.Len(t, pod.Status.PodIPs, 2)
	client := c.waitPod("app=client", "ready", isReady)
	service, err := c.client().CoreV1().Services("default").Get(t.Context(), "server", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, service.Spec.ClusterIPs, 2)

	for _, address := range service.Spec.ClusterIPs {
		t.Run("by "+address, func(t *testing.T) {
			url := "http://" + net.JoinHostPort(address, "80")
			var out string
			require.NoError(t, c.poll(func(context.Context) bool {
				out, err = c.run("kubectl", "exec", "client", "--", "/bin/busybox", "wget", "-q", "-O", "-", url)
				return err == nil
			}), "%s", out)
			require.Equal(t, "served", strings.TrimSpace(out))
			require.Equal(t, "served", strings.TrimSpace(get(t, url)), "from the machine")
		})
	}
	t.Run("by node port", func(t *testing.T) {
		for _, address := range []string{c.gateway(), fmt.Sprintf("fd00:%x::1", c.network)} {
			require.Equal(t, "served", strings.TrimSpace(get(t, "http://"+net.JoinHostPort(address, fmt.Sprint(service.Spec.Ports[0].NodePort)))))
		}
	})
	t.Run("by name", func(t *testing.T) {
		found, err := c.resolver().LookupHost(t.Context(), "server.default.svc.cluster.local")
		require.NoError(t, err)
		require.ElementsMatch(t, service.Spec.ClusterIPs, found)
	})
	t.Run("a Pod keeps to its own address", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), "nft", "list", "set", "bridge", "berth"+c.id(), "addresses6").Output()
		require.NoError(t, err)
		require.Contains(t, string(out), client.Status.PodIPs[1].IP)
	})
	c.stop()
	require.Empty(t, c.leftovers())
	require.NotContains(t, ruleset(t), "berth"+c.id())
}
