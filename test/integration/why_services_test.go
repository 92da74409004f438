//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/explain"
)

// serviceCause is a cause of a Service or a name that does not work: how it is brought about, and what the command says.
type serviceCause struct {
	reason, wantText string
	// object are the arguments of `berth explain`.
	object []string
	setUp  func()
	undo   func()
}

// TestWhyServices brings about the causes of docs/why.md that keep connections from reaching Pods and names from resolving.
func TestWhyServices(t *testing.T) {
	c := newClusterWithServices(t)
	broken := failingNFT(t)
	upstream := startNameServer(t, "127.0.0.77")
	resolvConf := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(resolvConf, []byte("nameserver "+upstream.address+"\n"), 0o600))
	c.up("--unsafe-no-fsync", "--resolv-conf", resolvConf)
	importShell(t, c)
	c.apply(serverPod("backend", "server", "mkdir /w; exec /bin/busybox httpd -f -p 8080 -h /w"))
	c.apply(serviceManifest("server", `"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]`))
	c.waitPod("app=server", "ready", isReady)
	catalogue := string(readFile(t, "../../docs/why.md"))
	for _, cause := range append(append(serviceObjectCauses(c), serviceNetworkCauses(t, c, broken)...), nameCauses(t, c, resolvConf)...) {
		t.Run(cause.reason+" "+strings.Join(cause.object, " "), func(t *testing.T) {
			if cause.undo != nil {
				defer cause.undo()
			}
			if cause.setUp != nil {
				cause.setUp()
			}
			answer := c.waitExplained(t, cause.reason, cause.object...)
			require.Contains(t, answer.Verdict+"\n"+evidence(answer), cause.wantText)
			out, err := c.run(append([]string{"explain", "--exit-code"}, cause.object...)...)
			require.Equal(t, answer.Stuck(), err != nil, out)
			if dir := os.Getenv("WHY_OUTPUT"); dir != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, cause.reason+"--"+strings.ReplaceAll(strings.Join(cause.object, "-"), "/", "-")), []byte(out), 0o600))
			}
			require.True(t, cause.reason == "Ready" || strings.Contains(catalogue, "`"+cause.reason+"`"), "docs/why.md lists %s, as every reason", cause.reason)
		})
	}
	t.Run("all that is stuck", func(t *testing.T) {
		out := c.mustRun("explain", "--all")
		require.Contains(t, out, "service/typo")
		require.NotContains(t, out, "service/server")
	})
}

// waitExplained explains an object until the reason is the given one.
func (c *cluster) waitExplained(t *testing.T, reason string, object ...string) *explain.Explanation {
	t.Helper()
	var answer explain.Explanation
	var out string
	require.NoError(t, c.poll(func(context.Context) bool {
		var err error
		out, err = c.run(append([]string{"explain", "-o", "json"}, object...)...)
		answer = explain.Explanation{}
		return err == nil && json.Unmarshal([]byte(out), &answer) == nil && answer.Reason == reason
	}), "no verdict %s on %v; the last was:\n%s", reason, object, out)
	return &answer
}

// failingNFT puts a program nft before the machine's that fails while the returned file exists.
func failingNFT(t *testing.T) (broken string) {
	t.Helper()
	real, err := exec.LookPath("nft")
	require.NoError(t, err, "apt-get install nftables (make deps does)")
	dir := t.TempDir()
	broken = filepath.Join(dir, "broken")
	script := fmt.Sprintf("#!/bin/sh\n[ ! -e %s ] || { echo planned failure >&2; exit 1; }\nexec %s \"$@\"\n", broken, real)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nft"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return broken
}

// serverPod is a Pod with a label that runs a script.
func serverPod(name, app, script string) string {
	return `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "` + name + `", "labels": {"app": "` + app + `"}}, "spec": {
		"terminationGracePeriodSeconds": 1, "containers": [` + strings.Replace(shell(script, `"ports": [{"name": "http", "containerPort": 8080}]`), "{",
		`{"name": "main", `, 1) + `]}}`
}

// serviceManifest is a Service with further fields of its spec.
func serviceManifest(name, spec string) string {
	return `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "` + name + `"}, "spec": {` + spec + `}}`
}

// serviceObjectCauses are those that the API's objects show.
func serviceObjectCauses(c *cluster) []serviceCause {
	apply := func(manifests ...string) func() {
		return func() {
			for _, manifest := range manifests {
				c.apply(manifest)
			}
		}
	}
	svc := func(name string) []string { return []string{"svc/" + name} }
	ports := `"ports": [{"port": 80, "targetPort": 8080}]`
	return []serviceCause{
		{reason: "Ready", wantText: "leads to 1 of 1 Pod at", object: svc("server")},
		{reason: "SelectorMatchesNothing", wantText: `pod backend comes closest: its label app is "server", not "serve"`, object: svc("typo"),
			setUp: apply(serviceManifest("typo", `"selector": {"app": "serve"}, `+ports))},
		{reason: "ScaledToZero", wantText: "deployment idle match its selector, and it has 0 replicas", object: svc("idle"),
			setUp: apply(deploymentManifest("idle", "default", 0), serviceManifest("idle", `"selector": {"app": "idle"}, `+ports))},
		{reason: "TargetPortMissing", wantText: `its targetPort "web" is the name of no container port of pod backend, which has http (8080/TCP)`,
			object: svc("port-name"), setUp: apply(serviceManifest("port-name", `"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": "web"}]`))},
		{reason: "ProbeFailing", wantText: "none of the 1 Pod that its selector matches is ready; pod sick: waiting", object: svc("sick"),
			setUp: apply(podManifest("sick", shell("sleep 1000", `"readinessProbe": {"periodSeconds": 1, "exec": {"command": ["/bin/busybox", "false"]}}`), ""),
				serviceManifest("sick", `"selector": {"name": "sick"}, `+ports))},
		{reason: "NoEndpointsGiven", wantText: "it has no selector", object: svc("by-hand"), setUp: apply(serviceManifest("by-hand", ports))},
		{reason: "LoadBalancerPending", wantText: "spec.loadBalancerClass: example.test/none", object: svc("outside"),
			setUp: apply(serviceManifest("outside", `"type": "LoadBalancer", "loadBalancerClass": "example.test/none", "selector": {"app": "server"}, `+ports))},
		{reason: "PortTaken", wantText: "pod default/holder has it as its hostPort", object: svc("node-port"),
			setUp: apply(podManifest("holder", shell("sleep 1000", `"ports": [{"containerPort": 1, "hostPort": 31999}]`), ""),
				serviceManifest("node-port", `"type": "NodePort", "selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080, "nodePort": 31999}]`))},
		{reason: "ExternalNameIsAddress", wantText: "10.0.0.1 is an address, and must be a name", object: svc("alias-address"),
			setUp: apply(serviceManifest("alias-address", `"type": "ExternalName", "externalName": "10.0.0.1"`))},
		{reason: "ExternalNameNotFound", wantText: "service srv does not exist in namespace default", object: svc("alias-none"),
			setUp: apply(serviceManifest("alias-none", `"type": "ExternalName", "externalName": "srv.default.svc.cluster.local"`))},
		{reason: "Alias", wantText: "is an alias of server.default.svc.cluster.local", object: svc("alias"),
			setUp: apply(serviceManifest("alias", `"type": "ExternalName", "externalName": "server.default.svc.cluster.local"`))},
		{reason: "Finalizer", wantText: "example.test/guard", object: svc("guarded"),
			setUp: func() {
				c.apply(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "guarded", "finalizers": ["example.test/guard"]}, "spec": {` + ports + `}}`)
				c.mustRun("kubectl", "delete", "svc", "guarded", "--wait=false")
			},
			undo: func() {
				c.mustRun("kubectl", "patch", "svc", "guarded", "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)
			}},
		{reason: "NoLocalEndpoint", wantText: "connections of Pods on node far are dropped", object: svc("local"),
			setUp: func() {
				c.apply(serviceManifest("local", `"internalTrafficPolicy": "Local", "selector": {"app": "server"}, `+ports))
				c.addReadyNode("far")
			},
			undo: func() { c.mustRun("kubectl", "delete", "node", "far") }},
		{reason: "WebhookFailed", wantText: "service default/hook, which serves webhook check.example.test, reaches no Pod: its selector app=hook matches",
			object: []string{"deployment/hooked", "-n", "hooked"}, setUp: func() { c.breakWebhook() },
			undo: func() { c.mustRun("kubectl", "delete", "validatingwebhookconfiguration", "check") }},
	}
}

func deploymentManifest(name, namespace string, replicas int) string {
	return fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": %[1]q, "namespace": %[2]q}, "spec": {"replicas": %[3]d,
		"selector": {"matchLabels": {"app": %[1]q}}, "template": {"metadata": {"labels": {"app": %[1]q}}, "spec": {"containers": [
		{"name": "main", "image": %[4]q}]}}}}`, name, namespace, replicas, shellImage)
}

// addReadyNode adds a Node without a kubelet, which counts as ready until the node controller has noticed.
func (c *cluster) addReadyNode(name string) {
	c.t.Helper()
	_, err := c.client().CoreV1().Nodes().Create(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	c.mustRun("kubectl", "patch", "node", name, "--subresource=status", "-p",
		`{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "none"}]}}`)
}

// breakWebhook lets an admission webhook whose Service has no Pods decide on the Pods of a namespace.
func (c *cluster) breakWebhook() {
	c.t.Helper()
	c.mustRun("kubectl", "create", "namespace", "hooked")
	c.apply(serviceManifest("hook", `"selector": {"app": "hook"}, "ports": [{"port": 443, "targetPort": 8443}]`))
	c.apply(`{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "check"}, "webhooks": [{
		"name": "check.example.test", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "timeoutSeconds": 5,
		"clientConfig": {"service": {"name": "hook", "namespace": "default", "path": "/check"}},
		"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "hooked"}},
		"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]}]}`)
	c.apply(deploymentManifest("hooked", "hooked", 1))
}

// signalProgram signals a process of the cluster by its pid file.
func (c *cluster) signalProgram(name string, signal syscall.Signal) {
	c.t.Helper()
	var pid int
	_, err := fmt.Sscan(string(readFile(c.t.(*testing.T), filepath.Join(c.runDir(), name+".pid"))), &pid)
	require.NoError(c.t, err)
	require.NoError(c.t, syscall.Kill(pid, signal))
}

// serviceNetworkCauses are those that only the node shows.
func serviceNetworkCauses(t *testing.T, c *cluster, broken string) []serviceCause {
	svc := func(name string) []string { return []string{"svc/" + name} }
	return []serviceCause{
		{reason: "NothingListens", wantText: "port 80 leads to 8081/TCP of pod backend, and no process listens there; the Pod listens on 8080/TCP (busybox (process",
			object: svc("wrong-port"),
			setUp: func() {
				c.apply(serviceManifest("wrong-port", `"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8081}]`))
			}},
		{reason: "ListensOnLoopback", wantText: "listens on 127.0.0.1 only: no other Pod can connect", object: svc("shy"), setUp: func() {
			c.apply(serverPod("shy", "shy", "mkdir /w; exec /bin/busybox httpd -f -p 127.0.0.1:8080 -h /w"))
			c.apply(serviceManifest("shy", `"selector": {"app": "shy"}, "ports": [{"port": 80, "targetPort": "http"}]`))
		}},
		{reason: "ProxyNotRunning", wantText: "does not respond", object: svc("server"),
			setUp: func() { c.signalProgram("kube-proxy", syscall.SIGSTOP) }, undo: func() { c.signalProgram("kube-proxy", syscall.SIGCONT) }},
		{reason: "ProxyNotSynced", wantText: "has not written the changes of the last", object: svc("server"),
			setUp: func() {
				require.NoError(t, os.WriteFile(broken, nil, 0o600))
				c.mustRun("kubectl", "create", "service", "clusterip", "change", "--tcp=80")
			},
			undo: func() { // nothing changes any more: kube-proxy tries again by itself
				require.NoError(t, os.Remove(broken))
				c.waitExplained(t, "Ready", "svc/server")
			}},
		{reason: "DNSNotResponding", wantText: "the cluster's DNS does not respond", object: svc("server"),
			setUp: func() { c.signalProgram("dns", syscall.SIGSTOP) }, undo: func() { c.signalProgram("dns", syscall.SIGCONT) }},
	}
}
