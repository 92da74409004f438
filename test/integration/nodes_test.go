//go:build integration

package integration

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const echoManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: echo}
spec:
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers: [%s]
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {type: LoadBalancer, selector: {app: echo}, ports: [{port: 8070, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: rival}
spec: {type: LoadBalancer, selector: {app: echo}, ports: [{port: 8070, targetPort: 8080}]}
`

// TestNodesJoinWithAToken has two machines join a cluster by the command that `berth token create` prints, and checks that
// Pods, Services and names work on all three, and that nothing stays of a node that leaves.
func TestNodesJoinWithAToken(t *testing.T) {
	c := newClusterWithServices(t)
	h := newHub(t, c)
	client := h.connect(200)
	c.up("--unsafe-no-fsync", "--api-address", h.address(1))
	importShell(t, c)
	join := c.joinArguments()
	refuses(t, c, h, join)
	members := []*member{newMember(t, h, c, 1), newMember(t, h, c, 2)}
	for _, m := range members {
		m.start(join...)
		importShell(t, m.cluster)
	}
	names := []string{homeNode, members[0].name, members[1].name}
	c.apply(fmt.Sprintf(echoManifest, shell(`mkdir /w; echo $NODE > /w/index.html; exec /bin/busybox httpd -f -vv -p 8080 -h /w`,
		`"name": "echo", "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]`)))
	pods := c.podsByNode("app=echo", names)

	t.Run("Pods reach Pods with their own addresses", func(t *testing.T) { c.checkPodNetwork(t, pods) })
	t.Run("names and Services on every node", func(t *testing.T) { c.checkServicesFrom(t, pods, members) })
	t.Run("metrics of every node", func(t *testing.T) { c.checkMetricsOf(t, names) })
	t.Run("load balancer", func(t *testing.T) { c.checkLoadBalancer(t, h, client, names) })
	t.Run("a node that is deleted", func(t *testing.T) {
		gone := members[1]
		node, err := c.client().CoreV1().Nodes().Get(t.Context(), gone.name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Contains(t, routes(t, ""), node.Spec.PodCIDR)
		require.Contains(t, routes(t, members[0].namespace), node.Spec.PodCIDR)
		gone.stop()
		require.Empty(t, gone.leftovers())
		require.NotContains(t, routes(t, gone.namespace), "proto 137")
		c.mustRun("kubectl", "delete", "node", gone.name)
		require.NoError(t, c.poll(func(context.Context) bool {
			return !strings.Contains(routes(t, ""), node.Spec.PodCIDR) && !strings.Contains(routes(t, members[0].namespace), node.Spec.PodCIDR)
		}), "the routes to %s stay:\n%s", node.Spec.PodCIDR, routes(t, ""))
	})
	t.Run("a restart needs no token", func(t *testing.T) {
		m := members[0]
		for _, line := range strings.Split(c.mustRun("token", "list"), "\n")[1:] {
			if fields := strings.Fields(line); len(fields) > 0 {
				c.mustRun("token", "delete", fields[0])
			}
		}
		m.stop()
		require.Empty(t, m.leftovers())
		m.start()
		c.podsByNode("app=echo", names[:2])
	})
	members[0].stop()
	require.Empty(t, members[0].leftovers())
	require.Error(t, inside(members[0].namespace, "nft", "list", "table", "ip", "kube-proxy").Run(), "the rules are removed")
	c.stop()
	require.Empty(t, c.leftovers())
	require.NotContains(t, routes(t, ""), "proto 137")
}

// checkMetricsOf reads the usage of each node, and the metrics of its processes, over connections to its kubelet that verify its
// certificate.
func (c *cluster) checkMetricsOf(t *testing.T, nodes []string) {
	t.Helper()
	require.NoError(t, c.poll(func(context.Context) bool {
		usage := c.mustRun("kubectl", "top", "node", "--no-headers")
		return len(strings.Split(strings.TrimSpace(usage), "\n")) == len(nodes) && !strings.Contains(usage, "unknown")
	}), "each node has its usage")
	metrics := strings.Split(c.mustRun("kubectl", "get", "--raw", "/metrics/cluster"), "\n")
	for _, node := range nodes {
		for _, process := range []string{"kubelet", "kube-proxy"} {
			require.Contains(t, metrics, fmt.Sprintf("berth_process_up{berth_node=%q,berth_process=%q} 1", node, process))
		}
	}
	for _, node := range nodes {
		own := c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics")
		require.Equal(t, node != homeNode, strings.Contains(own, "\nberth_kube_proxy_certificate_renew_errors 0\n"),
			"the certificate of kube-proxy of a node that has joined is renewed by its kubelet's process; node %s", node)
	}
}

// refuses tries to join with what the cluster must not accept.
func refuses(t *testing.T, c *cluster, h *hub, join []string) {
	t.Helper()
	namespace := h.connect(201)
	dir := filepath.Join(shortDir(t), "data")
	refused := func(change func(arguments []string)) string {
		arguments := slices.Clone(join)
		change(arguments)
		out, err := inside(namespace, append([]string{c.berth, "node", "--data-dir", dir}, arguments...)...).CombinedOutput()
		require.Error(t, err)
		return string(out)
	}
	at := func(flag string) int { return slices.Index(join, flag) + 1 }
	require.Contains(t, refused(func(a []string) { a[at("--token")] = "abcdef.0123456789abcdef" }), "the cluster does not accept it")
	require.Contains(t, refused(func(a []string) { a[at("--ca-cert-hash")] = "sha256:" + strings.Repeat("0", 64) }), "no CA of the server has the hash")
	require.Contains(t, refused(func(a []string) { a[at("--join")] = "https://" + h.address(1) + ":1" }), "connection refused")
}

// podsByNode waits until there is a ready Pod on each of the nodes, and returns them.
func (c *cluster) podsByNode(selector string, nodes []string) map[string]*corev1.Pod {
	c.t.Helper()
	found := make(map[string]*corev1.Pod)
	require.NoError(c.t, c.poll(func(ctx context.Context) bool {
		list, err := c.client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return false
		}
		clear(found)
		for i := range list.Items {
			if pod := &list.Items[i]; isReady(pod) {
				found[pod.Spec.NodeName] = pod
			}
		}
		return !slices.ContainsFunc(nodes, func(node string) bool { return found[node] == nil })
	}), "no ready Pod on each of %v", nodes)
	return found
}

// checkPodNetwork sends a request from each Pod to each other one, which must see the Pod's own address.
func (c *cluster) checkPodNetwork(t *testing.T, pods map[string]*corev1.Pod) {
	for _, from := range pods {
		for node, to := range pods {
			require.Equal(t, []string{node}, c.fetchIn(from.Name, request(to.Status.PodIP, "8080")))
			require.NoError(t, c.poll(func(context.Context) bool {
				log, err := c.run("kubectl", "logs", to.Name)
				return err == nil && strings.Contains(log, from.Status.PodIP+"]") || strings.Contains(log, from.Status.PodIP+":")
			}), "Pod %s has not seen %s", to.Name, from.Status.PodIP)
		}
	}
}

// checkServicesFrom reaches all Pods of the Service by its name from each Pod, and by its address from each machine.
func (c *cluster) checkServicesFrom(t *testing.T, pods map[string]*corev1.Pod, members []*member) {
	service, err := c.client().CoreV1().Services("default").Get(t.Context(), "echo", metav1.GetOptions{})
	require.NoError(t, err)
	kubeDNS, err := c.client().CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	require.NoError(t, err)
	nodes := make([]string, 0, len(pods))
	for node := range pods {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	for node, from := range pods {
		resolver := kubeDNS.Spec.ClusterIP
		if node == homeNode {
			resolver = c.gateway()
		}
		require.Contains(t, c.mustRun("kubectl", "exec", from.Name, "--", "/bin/busybox", "cat", "/etc/resolv.conf"), "nameserver "+resolver)
		require.Contains(t, c.fetchIn(from.Name, "/bin/busybox nslookup echo.default.svc.cluster.local"), service.Spec.ClusterIP, "on node %s", node)
		found := c.fetchIn(from.Name, "for i in $(/bin/busybox seq 40); do "+request(service.Spec.ClusterIP, "8070")+"; done")
		slices.Sort(found)
		require.Equal(t, nodes, slices.Compact(found), "from node %s", node)
	}
	for _, m := range members {
		body, err := fetch(m.namespace, service.Spec.ClusterIP, "8070")
		require.NoError(t, err)
		require.Contains(t, nodes, body)
		body, err = fetch(m.namespace, m.address, fmt.Sprint(service.Spec.Ports[0].NodePort))
		require.NoError(t, err)
		require.Contains(t, nodes, body)
	}
}

// checkLoadBalancer reaches the Service at each node's address from a machine that is no node. The Service that wants the
// same port waits until the first one is deleted.
func (c *cluster) checkLoadBalancer(t *testing.T, h *hub, client string, nodes []string) {
	addresses := []string{h.address(1), h.address(2), h.address(3)}
	ingress := func(name string) (found []string) {
		service, err := c.client().CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		for _, one := range service.Status.LoadBalancer.Ingress {
			found = append(found, one.IP)
		}
		slices.Sort(found)
		return found
	}
	holder, waiting := "echo", "rival"
	require.NoError(t, c.poll(func(context.Context) bool {
		if len(ingress("rival")) > 0 {
			holder, waiting = "rival", "echo"
		}
		return slices.Equal(addresses, ingress(holder))
	}), "%v", ingress(holder))
	require.Empty(t, ingress(waiting))
	c.waitEvents("default", waiting, "PortTaken: port 8070/TCP of the nodes belongs to Service default/"+holder)
	for _, address := range addresses {
		require.NoError(t, c.poll(func(context.Context) bool {
			body, err := fetch(client, address, "8070")
			return err == nil && slices.Contains(nodes, body)
		}), "the Service does not answer at %s", address)
	}
	c.mustRun("kubectl", "delete", "service", holder)
	require.NoError(t, c.poll(func(context.Context) bool { return slices.Equal(addresses, ingress(waiting)) }))
	if waiting == "rival" { // the next steps expect it
		c.mustRun("kubectl", "delete", "service", "rival")
	}
}

// TestLoadBalancersOfARange gives Services addresses that neighbours on the machine's link reach.
func TestLoadBalancersOfARange(t *testing.T) {
	c := newClusterWithServices(t)
	h := newHub(t, c)
	client := h.connect(200)
	c.up("--unsafe-no-fsync", "--api-address", h.address(1), "--load-balancer-cidr", h.address(64)+"/28")
	importShell(t, c)
	c.apply(fmt.Sprintf(echoManifest, shell(`mkdir /w; echo yes > /w/index.html; exec /bin/busybox httpd -f -p 8080 -h /w`, `"name": "echo"`)))
	c.podsByNode("app=echo", []string{homeNode})
	for _, name := range []string{"echo", "rival"} {
		var address string
		require.NoError(t, c.poll(func(ctx context.Context) bool {
			service, err := c.client().CoreV1().Services("default").Get(ctx, name, metav1.GetOptions{})
			require.NoError(t, err)
			if len(service.Status.LoadBalancer.Ingress) == 0 {
				return false
			}
			address = service.Status.LoadBalancer.Ingress[0].IP
			body, err := fetch(client, address, "8070")
			return err == nil && body == "yes"
		}), "Service %s does not answer at %q", name, address)
		require.Contains(t, []string{h.address(64), h.address(65)}, address)
	}
	has := func(address string) bool {
		out, err := exec.Command("ip", "-o", "addr").Output()
		require.NoError(t, err)
		return strings.Contains(string(out), address+"/32")
	}
	require.True(t, has(h.address(64)))
	c.mustRun("kubectl", "delete", "service", "echo", "rival")
	require.NoError(t, c.poll(func(context.Context) bool { return !has(h.address(64)) && !has(h.address(65)) }), "the addresses stay")
	c.apply(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "again"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 1}]}}`)
	require.NoError(t, c.poll(func(context.Context) bool { return has(h.address(64)) }))
	c.stop()
	require.Empty(t, c.leftovers())
	require.False(t, has(h.address(64)), "the address is removed")
}
