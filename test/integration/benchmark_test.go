//go:build integration

package integration

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/pidfile"
)

// A benchmarkItem is one or several items of the CIS Kubernetes Benchmark that a cluster that runs can show. docs.TestBenchmark compares
// their numbers with docs/security.md.
type benchmarkItem struct {
	items string
	check func(b *benchmark, t *testing.T)
}

// benchmark is a cluster with the node's address of its kubelet and what its roles allow.
type benchmark struct {
	*cluster
	kubelet  string
	config   map[string]any
	hardened bool
}

func benchmarkItems() []benchmarkItem {
	return []benchmarkItem{
		{"1.1.9, 1.1.10, 4.1.10", func(b *benchmark, t *testing.T) { b.requireClosed(t, "cni", 0o077) }},
		{"1.1.11, 1.1.12", func(b *benchmark, t *testing.T) { b.requireClosed(t, "etcd", 0o077) }},
		{"1.1.13 to 1.1.18, 4.1.3 to 4.1.6", func(b *benchmark, t *testing.T) {
			b.requireClosed(t, "kubeconfigs", 0o077)
			b.requireClosed(t, "admin.kubeconfig", 0o077)
		}},
		{"1.1.19 to 1.1.21, 4.1.7, 4.1.8", func(b *benchmark, t *testing.T) { b.requireClosed(t, "pki", 0o077) }},
		{"1.2.1", func(b *benchmark, t *testing.T) {
			server := fmt.Sprintf("https://127.0.0.1:%d", b.port)
			require.Equal(t, http.StatusOK, anonymousStatus(t, server+"/livez"))
			for _, path := range []string{"/", "/api", "/version", "/openapi/v3", "/api/v1/nodes", "/metrics"} {
				require.Equal(t, http.StatusUnauthorized, anonymousStatus(t, server+path), path)
			}
		}},
		{"1.3.7, 1.4.1, 1.4.2", func(b *benchmark, t *testing.T) {
			require.Equal(t, []int{b.port}, b.ports(t, "controlplane"), "ports of the control plane: the scheduler, the controller manager and etcd have none")
		}},
		{"3.2.1, 3.2.2", (*benchmark).checkAuditPolicy},
		{"4.2.1, 4.2.2, 4.2.3", func(b *benchmark, t *testing.T) {
			for _, path := range []string{"/pods", "/metrics", "/configz", "/healthz", "/exec/default/user/main"} {
				require.Equal(t, http.StatusUnauthorized, anonymousStatus(t, "https://"+b.kubelet+path), path)
			}
			require.Equal(t, false, b.setting("authentication", "anonymous", "enabled"))
			require.Equal(t, "Webhook", b.setting("authorization", "mode"))
			require.Equal(t, filepath.Join(b.dataDir, "pki", "ca.crt"), b.setting("authentication", "x509", "clientCAFile"))
		}},
		{"4.2.4", func(b *benchmark, t *testing.T) {
			require.NotContains(t, b.ports(t, "node"), 10255)
			require.Contains(t, []any{nil, 0.0}, b.setting("readOnlyPort"))
		}},
		{"4.2.5", func(b *benchmark, t *testing.T) {
			require.NotEqual(t, "0s", b.setting("streamingConnectionIdleTimeout"))
		}},
		{"4.2.8", func(b *benchmark, t *testing.T) {
			events, set := b.setting("eventRecordQPS").(float64)
			require.True(t, !set || events >= 0)
		}},
		{"4.2.9, 4.2.10, 4.2.11", func(b *benchmark, t *testing.T) {
			require.NotEmpty(t, b.setting("tlsCertFile"))
			require.NotEmpty(t, b.setting("tlsPrivateKeyFile"))
		}},
		{"1.2.29, 4.2.12", func(b *benchmark, t *testing.T) {
			for _, address := range []string{b.kubelet, fmt.Sprintf("127.0.0.1:%d", b.port)} {
				requireStrongTLS(t, address)
			}
		}},
		{"4.2.13", func(b *benchmark, t *testing.T) { require.Greater(t, b.setting("podPidsLimit"), 0.0) }},
		{"4.2.14, 5.6.2", func(b *benchmark, t *testing.T) {
			require.Equal(t, true, b.setting("seccompDefault"))
			status := b.mustRun("kubectl", "exec", "user", "--", "/bin/busybox", "grep", "Seccomp:", "/proc/self/status")
			require.Equal(t, "Seccomp:\t2", strings.TrimSpace(status))
		}},
		{"5.1.1", (*benchmark).checkClusterAdmin},
		{"5.1.2, 5.1.4", func(b *benchmark, t *testing.T) {
			for _, right := range []string{"get secrets", "list secrets", "watch secrets", "create pods"} {
				out, err := b.run(append(append([]string{"kubectl", "auth", "can-i"}, strings.Fields(right)...), "--all-namespaces", "--as=someone", "--as-group=system:authenticated")...)
				require.Error(t, err, right)
				require.Equal(t, "no", strings.TrimSpace(out), right)
			}
		}},
		{"5.1.3, 5.1.8 to 5.1.13", (*benchmark).checkRoles},
		{"5.2.1 to 5.2.12", (*benchmark).checkPodSecurity},
	}
}

// checkBenchmark checks all items on a cluster with the Pod user.
func (c *cluster) checkBenchmark(t *testing.T, hardened bool) {
	b := &benchmark{cluster: c, hardened: hardened}
	b.kubelet = c.gateway() + ":" + c.mustRun("kubectl", "get", "node", homeNode, "-o", "jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}")
	var page map[string]map[string]any
	require.NoError(t, json.Unmarshal([]byte(c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/configz")), &page))
	b.config = page["kubeletconfig"]
	for _, item := range benchmarkItems() {
		t.Run(item.items, func(t *testing.T) { item.check(b, t) })
	}
}

// setting is a field of the kubelet's effective configuration; nil if it has none.
func (b *benchmark) setting(path ...string) any {
	var value any = b.config
	for _, name := range path {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	return value
}

// requireClosed checks that everything below a path of the data directory belongs to root, and has none of the bits.
func (b *benchmark) requireClosed(t *testing.T, path string, bits fs.FileMode) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(filepath.Join(b.dataDir, path), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&(fs.ModeSymlink|fs.ModeSocket) != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // etcd's files come and go
		}
		require.Zero(t, info.Mode().Perm()&bits, "%s has mode %v", path, info.Mode())
		stat := info.Sys().(*syscall.Stat_t)
		require.Zero(t, stat.Uid+stat.Gid, path)
		return nil
	}))
}

// anonymousStatus is the status of a request without credentials.
func anonymousStatus(t *testing.T, url string) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: waitTimeout}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode
}

// requireStrongTLS checks that a server wants TLS 1.2 with authenticated encryption at least.
func requireStrongTLS(t *testing.T, address string) {
	t.Helper()
	var weak []uint16
	for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		if strings.Contains(suite.Name, "CBC") || strings.Contains(suite.Name, "RC4") || strings.HasPrefix(suite.Name, "TLS_RSA") {
			weak = append(weak, suite.ID)
		}
	}
	for name, config := range map[string]*tls.Config{
		"weak ciphers": {MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: weak},
		"TLS 1.1":      {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	} {
		config.InsecureSkipVerify = true
		dialer := &tls.Dialer{Config: config}
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		require.ErrorContains(t, err, "tls:", "%s at %s", name, address)
	}
}

// ports returns the TCP ports on which a child of the cluster listens.
func (b *benchmark) ports(t *testing.T, child string) []int {
	t.Helper()
	proc := filepath.Join("/proc", strconv.Itoa(pidfile.Running(pidfile.Proc, filepath.Join(b.runDir(), child+".pid"))))
	sockets := make(map[string]bool)
	descriptors, err := filepath.Glob(filepath.Join(proc, "fd", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, descriptors)
	for _, descriptor := range descriptors {
		link, _ := os.Readlink(descriptor) // it may be closed
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			sockets[strings.TrimSuffix(inode, "]")] = true
		}
	}
	var ports []int
	for _, family := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join(proc, "net", family))
		require.NoError(t, err)
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			const listening = "0A"
			if len(fields) < 10 || fields[3] != listening || !sockets[fields[9]] {
				continue
			}
			_, text, _ := strings.Cut(fields[1], ":")
			port, err := strconv.ParseInt(text, 16, 32)
			require.NoError(t, err)
			ports = append(ports, int(port))
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// checkAuditPolicy looks for what the benchmark wants recorded.
func (b *benchmark) checkAuditPolicy(t *testing.T) {
	b.mustRun("kubectl", "exec", "user", "--", "/bin/busybox", "true")
	b.mustRun("kubectl", "create", "configmap", "recorded")
	b.mustRun("kubectl", "delete", "configmap", "recorded")
	log := string(readFile(t, filepath.Join(b.dataDir, "log", "audit.log")))
	for _, want := range []string{`"resource":"pods","namespace":"default","name":"user","apiVersion":"v1","subresource":"exec"`, `"resource":"configmaps"`, `"resource":"secrets"`} {
		require.Contains(t, log, want)
	}
	require.NotContains(t, log, `"level":"Request`)
}

// checkClusterAdmin looks for bindings to the role cluster-admin other than Kubernetes' own.
func (b *benchmark) checkClusterAdmin(t *testing.T) {
	bindings, err := b.client().RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range bindings.Items {
		if binding := &bindings.Items[i]; binding.RoleRef.Name == "cluster-admin" {
			require.Equal(t, "cluster-admin", binding.Name)
		}
	}
}

// checkRoles checks what the roles of Berth's components allow. Those of Kubernetes itself are Kubernetes' own.
func (b *benchmark) checkRoles(t *testing.T) {
	roles, err := b.client().RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	own := 0
	for i := range roles.Items {
		role := &roles.Items[i]
		if role.Labels["kubernetes.io/bootstrapping"] != "" || len(role.OwnerReferences) > 0 {
			continue
		}
		own++
		for _, rule := range role.Rules {
			b.checkRule(t, role.Name, &rule)
		}
	}
	require.Greater(t, own, 5)
}

func (b *benchmark) checkRule(t *testing.T, role string, rule *rbacv1.PolicyRule) {
	t.Helper()
	for _, list := range [][]string{rule.Verbs, rule.APIGroups, rule.Resources} {
		require.NotContains(t, list, "*", role)
	}
	for _, verb := range []string{"bind", "escalate", "impersonate"} {
		require.NotContains(t, rule.Verbs, verb, role)
	}
	changes := slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) })
	for resource, allowed := range map[string]string{
		"nodes/proxy": "", "serviceaccounts/token": "", "mutatingwebhookconfigurations": "", "validatingwebhookconfigurations": "",
		"certificatesigningrequests/approval": "berth:approver", "persistentvolumes": "berth:provision",
	} {
		concerns := changes
		switch resource {
		case "nodes/proxy":
			concerns = true
		case "persistentvolumes": // the item is about their creation: what they lead to cannot be changed later
			concerns = slices.Contains(rule.Verbs, "create")
		}
		if slices.Contains(rule.Resources, resource) && concerns {
			require.Equal(t, allowed, role, "%s %v", resource, rule.Verbs)
		}
	}
}

// checkPodSecurity creates Pods, for a test only, that the benchmark wants refused.
func (b *benchmark) checkPodSecurity(t *testing.T) {
	const restricted = `"allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}`
	for name, spec := range map[string]string{
		"5.2.2":  `"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]`,
		"5.2.3":  `"hostPID": true, "containers": [{"name": "c", "image": "i", "securityContext": {` + restricted + `}}]`,
		"5.2.4":  `"hostIPC": true, "containers": [{"name": "c", "image": "i", "securityContext": {` + restricted + `}}]`,
		"5.2.5":  `"hostNetwork": true, "containers": [{"name": "c", "image": "i", "securityContext": {` + restricted + `}}]`,
		"5.2.6":  `"containers": [{"name": "c", "image": "i", "securityContext": {` + strings.Replace(restricted, `"allowPrivilegeEscalation": false, `, "", 1) + `}}]`,
		"5.2.7":  `"containers": [{"name": "c", "image": "i", "securityContext": {` + strings.Replace(restricted, `"runAsNonRoot": true, `, "", 1) + `}}]`,
		"5.2.8":  `"containers": [{"name": "c", "image": "i", "securityContext": {` + strings.Replace(restricted, `"drop": ["ALL"]`, `"drop": ["ALL"], "add": ["NET_RAW"]`, 1) + `}}]`,
		"5.2.9":  `"containers": [{"name": "c", "image": "i", "securityContext": {` + strings.Replace(restricted, `"capabilities": {"drop": ["ALL"]}, `, "", 1) + `}}]`,
		"5.2.10": `"securityContext": {"windowsOptions": {"hostProcess": true}}, "hostNetwork": true, "containers": [{"name": "c", "image": "i"}]`,
		"5.2.11": `"volumes": [{"name": "v", "hostPath": {"path": "/etc"}}], "containers": [{"name": "c", "image": "i", "securityContext": {` + restricted + `}}]`,
		"5.2.12": `"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}], "securityContext": {` + restricted + `}}]`,
		"none":   `"containers": [{"name": "c", "image": "i", "securityContext": {` + restricted + `}}]`,
	} {
		manifest := filepath.Join(t.TempDir(), "pod.json")
		text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "never"}, "spec": {%s}}`, spec)
		require.NoError(t, os.WriteFile(manifest, []byte(text), 0o600))
		out, err := b.run("kubectl", "create", "--dry-run=server", "-f", manifest)
		if b.hardened && name != "none" {
			require.Error(t, err, name)
			require.Contains(t, out, `violates PodSecurity "restricted`, name)
			continue
		}
		require.NoError(t, err, "%s: %s", name, out)
	}
}
