//go:build integration

package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const webManifest = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: peers
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [%s]
  volumeClaimTemplates:
  - {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: peers}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 8080}]}
`

// TestServicesAndNames reaches Pods by the addresses and names of Services, from Pods, among them one that is its own
// backend, and from the machine.
func TestServicesAndNames(t *testing.T) {
	collector := startCollector(t)
	c := newClusterWithServices(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(fmt.Sprintf(webManifest, shell("mkdir /w; /bin/busybox hostname > /w/index.html; exec /bin/busybox httpd -f -p 8080 -h /w",
		`"name": "web", "volumeMounts": [{"name": "data", "mountPath": "/data"}]`)))
	for _, pod := range []string{"web-0", "web-1"} {
		c.waitPod("statefulset.kubernetes.io/pod-name="+pod, "ready", isReady)
	}
	service, err := c.client().CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	backends := []string{"web-0", "web-1"}

	t.Run("from the machine by cluster address", func(t *testing.T) { c.reachesAll(t, net.JoinHostPort(service.Spec.ClusterIP, "80"), backends) })
	t.Run("from the machine by node port", func(t *testing.T) {
		c.reachesAll(t, fmt.Sprintf("%s:%d", c.gateway(), service.Spec.Ports[0].NodePort), backends)
	})
	t.Run("from a Pod, which may be its own backend", func(t *testing.T) {
		script := `for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do printf 'GET / HTTP/1.0\r\n\r\n' | busybox nc ` + service.Spec.ClusterIP +
			` 80 | busybox tail -n 1; done`
		out := c.mustRun("kubectl", "exec", "web-0", "--", "/bin/busybox", "sh", "-c", strings.ReplaceAll(script, "busybox", "/bin/busybox"))
		found := strings.Fields(out)
		slices.Sort(found)
		require.Equal(t, backends, slices.Compact(found))
	})
	t.Run("metrics of all processes", func(t *testing.T) { checkPrometheus(t, c) })
	t.Run("traces", func(t *testing.T) {
		c.checkTrace(t, collector, c.waitPod("statefulset.kubernetes.io/pod-name=web-0", "ready", isReady).UID)
	})
	t.Run("kubectl", func(t *testing.T) { c.checkKubectl(t, backends) })
	t.Run("names", func(t *testing.T) { c.checkNames(t, service.Spec.ClusterIP) })
	t.Run("a process that dies is started again", func(t *testing.T) {
		for _, name := range []string{"kube-proxy", "dns"} {
			var pid int
			_, err := fmt.Sscan(string(readFile(t, filepath.Join(c.runDir(), name+".pid"))), &pid)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			c.out.waitFor(t, name+" exited unexpectedly", c.ended)
			c.reachesAll(t, net.JoinHostPort(service.Spec.ClusterIP, "80"), backends) // the kernel's rules stay
		}
		c.resolves(t, "web.default.svc.cluster.local", service.Spec.ClusterIP)
		// A new backend shows that the new kube-proxy follows the API.
		c.mustRun("kubectl", "scale", "statefulset/web", "--replicas=3")
		c.reachesAll(t, net.JoinHostPort(service.Spec.ClusterIP, "80"), append(backends, "web-2"))
	})
	t.Run("a second cluster is refused", func(t *testing.T) {
		second := newClusterWithServices(t)
		out := second.refused()
		require.Contains(t, out, "another cluster on this machine forwards to its Services ("+c.dataDir)
		require.Contains(t, out, "--isolated")
		require.Empty(t, second.leftovers())
		require.NoDirExists(t, second.dataDir)
	})
	c.stop()
	require.Empty(t, c.leftovers())
	require.Error(t, exec.CommandContext(t.Context(), "nft", "list", "table", "ip", "kube-proxy").Run(), "the rules are removed")
}

// newClusterWithServices is newCluster with kube-proxy and DNS, which only one cluster of the machine can have.
func newClusterWithServices(t *testing.T) *cluster {
	c := newClusterIn(t, "the data") // CoreDNS' configuration has paths that begin with it
	at := slices.Index(c.args, "--without")
	c.args = slices.Delete(c.args, at, at+2)
	return c
}

// reachesAll sends requests until each of the Pods has answered.
func (c *cluster) reachesAll(t *testing.T, address string, pods []string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	missing := slices.Clone(pods)
	require.NoError(t, c.poll(func(ctx context.Context) bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, nil)
		require.NoError(t, err)
		response, err := client.Do(request)
		if err != nil {
			return false
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		missing = slices.DeleteFunc(missing, func(pod string) bool { return pod == strings.TrimSpace(string(body)) })
		return len(missing) == 0
	}), "%s does not lead to %v", address, missing)
}

// checkKubectl reaches the Service by kubectl's own ways.
func (c *cluster) checkKubectl(t *testing.T, pods []string) {
	for _, version := range []string{"v2", "v3/api/v1"} { // which the API server builds when they are first requested
		require.Contains(t, c.mustRun("kubectl", "get", "--raw", "/openapi/"+version), `"io.k8s.api.core.v1.PodSpec":{`)
	}
	info := c.mustRun("kubectl", "cluster-info")
	require.Contains(t, info, "Kubernetes control plane")
	require.Contains(t, info, "/api/v1/namespaces/kube-system/services/kube-dns:dns/proxy")
	// follow runs kubectl until the end of the test, and returns the address that it prints after the text.
	follow := func(after string, args ...string) string {
		out := newOutput()
		cmd := exec.Command(c.berth, append([]string{"--data-dir", c.dataDir, "kubectl"}, args...)...)
		cmd.Stdout, cmd.Stderr = out, out
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // kubectl has no orderly end of these
			<-ended
		})
		var address string
		require.NoError(t, c.poll(func(context.Context) bool {
			_, rest, found := strings.Cut(out.String(), after)
			address, _, _ = strings.Cut(rest, " ")
			return found
		}), "%v printed %s", args, out)
		return strings.TrimSpace(address)
	}
	forwarded := follow("Forwarding from ", "port-forward", "service/web", ":80")
	require.Contains(t, pods, strings.TrimSpace(get(t, "http://"+forwarded+"/")))
	proxied := follow("Starting to serve on ", "proxy", "--port=0")
	c.reachesAll(t, proxied+"/api/v1/namespaces/default/services/web:80/proxy/", pods)
}

// checkNames resolves names as Pods do: Services, Pods of a StatefulSet, addresses, and names that do not exist.
func (c *cluster) checkNames(t *testing.T, webAddress string) {
	peer, err := c.client().CoreV1().Pods("default").Get(t.Context(), "web-1", metav1.GetOptions{})
	require.NoError(t, err)
	c.resolves(t, "web.default.svc.cluster.local", webAddress)
	c.resolves(t, "web-1.peers.default.svc.cluster.local", peer.Status.PodIP)
	require.Contains(t, c.mustRun("kubectl", "exec", "web-0", "--", "/bin/busybox", "cat", "/etc/resolv.conf"),
		"search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver "+c.gateway())
	kubeDNS, err := c.client().CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, c.mustRun("kubectl", "exec", "web-0", "--", "/bin/busybox", "nslookup", "web.default.svc.cluster.local", kubeDNS.Spec.ClusterIP),
		"Address: "+webAddress)

	// A name that did not exist resolves as soon as it does.
	resolver := c.resolver()
	const late = "late.default.svc.cluster.local"
	_, err = resolver.LookupHost(t.Context(), late)
	var missing *net.DNSError
	require.ErrorAs(t, err, &missing)
	require.True(t, missing.IsNotFound)
	c.mustRun("kubectl", "create", "service", "clusterip", "late", "--tcp=80")
	created, err := c.client().CoreV1().Services("default").Get(t.Context(), "late", metav1.GetOptions{})
	require.NoError(t, err)
	c.resolves(t, late, created.Spec.ClusterIP)
}

// resolver asks the cluster's DNS.
func (c *cluster) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, net.JoinHostPort(c.gateway(), "53"))
	}}
}

func (c *cluster) resolves(t *testing.T, name, address string) {
	t.Helper()
	var got []string
	var err error
	require.NoError(t, c.poll(func(ctx context.Context) bool {
		got, err = c.resolver().LookupHost(ctx, name+".")
		return err == nil && slices.Equal(got, []string{address})
	}), "%s resolves to %v, %v", name, got, err)
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}
