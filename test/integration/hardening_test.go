//go:build integration

package integration

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

// TestHardening checks what protects a cluster by default: Secrets that appear nowhere but where they belong, the audit log, people's own
// certificates, the modes of files; and then what the same cluster refuses with --hardened.
func TestHardening(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	canary := newCanary(t)
	c.mustRun("kubectl", "create", "secret", "generic", "canary", "--from-literal=value="+canary)
	// It is mounted, in the environment, and printed by a hook that fails.
	c.apply(podManifest("user", shell(`test "$VALUE" = "$(cat /secret/value)" || exit 1; `+sleepScript,
		`"env": [{"name": "VALUE", "valueFrom": {"secretKeyRef": {"name": "canary", "key": "value"}}}],
		"volumeMounts": [{"name": "secret", "mountPath": "/secret"}]`),
		`"volumes": [{"name": "secret", "secret": {"secretName": "canary"}}]`))
	c.waitPod("name=user", "ready", isReady)
	c.apply(podManifest("hook", shell(sleepScript, `"env": [{"name": "VALUE", "valueFrom": {"secretKeyRef": {"name": "canary", "key": "value"}}}],
		"lifecycle": {"postStart": {"exec": {"command": ["/bin/busybox", "sh", "-c", "echo $VALUE; echo $VALUE >&2; exit 3"]}}}`), ""))
	require.NoError(t, c.poll(func(context.Context) bool {
		return strings.Contains(c.mustRun("kubectl", "get", "events"), "FailedPostStartHook")
	}))

	t.Run("secrets", func(t *testing.T) { c.checkCanary(t, canary) })
	t.Run("audit", func(t *testing.T) { c.checkAudit(t) })
	t.Run("people", func(t *testing.T) { c.checkPeople(t) })
	t.Run("files", func(t *testing.T) { c.checkModes(t) })
	t.Run("benchmark", func(t *testing.T) { c.checkBenchmark(t, false) })
	c.mustRun("kubectl", "delete", "pod", "user", "hook", "--wait=true", "--timeout=2m")
	c.stop()
	t.Run("store", func(t *testing.T) {
		found := filesWith(t, c.dataDir, canary)
		// It has had the environment of the containers, and leaves what it has deleted in the file until it needs the space.
		found = slices.DeleteFunc(found, func(path string) bool { return strings.HasSuffix(path, "/io.containerd.metadata.v1.bolt/meta.db") })
		require.Empty(t, found, "the Secret is in plain in these files")
	})

	c.up("--unsafe-no-fsync", "--hardened")
	require.Equal(t, canary, c.mustRun("kubectl", "get", "secret", "canary", "-o", "go-template={{.data.value | base64decode}}"))
	t.Run("hardened", func(t *testing.T) {
		for _, item := range benchmarkItems() {
			if strings.HasPrefix(item.items, "5.2.1 ") {
				item.check(&benchmark{cluster: c, hardened: true}, t)
			}
		}
	})
	out, err := c.run("kubectl", "run", "open", "--image="+shellImage, "--image-pull-policy=Never")
	require.Error(t, err)
	require.Contains(t, out, `violates PodSecurity "restricted`)
	c.mustRun("kubectl", "-n", "kube-system", "run", "open", "--image="+shellImage, "--privileged", "--dry-run=server")
	c.mustRun("kubectl", "label", "namespace", "default", "pod-security.kubernetes.io/enforce=privileged")
	c.mustRun("kubectl", "run", "open", "--image="+shellImage, "--privileged", "--dry-run=server")
	out, err = c.run("kubectl", "create", "service", "externalname", "x", "--external-name=example.com")
	require.NoError(t, err, out)
	out, err = c.run("kubectl", "patch", "service", "kubernetes", "--type=merge", "-p", `{"spec":{"externalIPs":["192.0.2.1"]}}`)
	require.Error(t, err)
	require.Contains(t, out, "externalIPs")
	c.stop()
	require.Empty(t, c.leftovers())
}

// newCanary returns a text that is nowhere else.
func newCanary(t *testing.T) string {
	t.Helper()
	raw := make([]byte, 16)
	_, err := rand.Read(raw)
	require.NoError(t, err)
	return "canary" + hex.EncodeToString(raw)
}

// checkCanary looks for the value of a Secret in logs, Events, the node's pages, and what explain prints.
func (c *cluster) checkCanary(t *testing.T, canary string) {
	t.Helper()
	require.Empty(t, filesWith(t, filepath.Join(c.dataDir, "log"), canary))
	require.Empty(t, filesWith(t, filepath.Join(c.dataDir, "etcd"), canary))
	pages := map[string]string{
		"events":  c.mustRun("kubectl", "get", "events", "-A", "-o", "json"),
		"explain": c.mustRun("explain", "pod/user", "-o", "json"), "hook": c.mustRun("explain", "pod/hook", "-o", "json"),
		"doctor": func() string { out, _ := c.run("doctor"); return out }(),
	}
	for _, path := range []string{"configz", "metrics", "statusz", "pods"} { // berth up has no /flagz
		pages[path] = c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/"+path)
	}
	for name, page := range pages {
		require.NotContains(t, page, canary, name)
	}
	for pid, command := range c.processes() {
		program, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe")) // it may have ended
		if filepath.Base(program) == "busybox" {                                    // the Pod's own process has its Secret
			continue
		}
		for _, file := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
			if err == nil {
				require.NotContains(t, string(data), canary, command)
			}
		}
	}
}

// filesWith returns the files below dir that contain the text.
func filesWith(t *testing.T, dir, text string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // files come and go
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(text)) {
			found = append(found, path)
		}
		return nil
	})
	require.NoError(t, err)
	return found
}

// checkAudit looks for what was done in the audit log.
func (c *cluster) checkAudit(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(c.dataDir, "log", "audit.log"))
	require.NoError(t, err)
	type record struct {
		Verb      string `json:"verb"`
		Level     string `json:"level"`
		User      struct{ Username string }
		ObjectRef struct{ Resource, Name string }
	}
	created, kubelet := false, false
	for line := range bytes.Lines(data) {
		var r record
		require.NoError(t, json.Unmarshal(line, &r), "%s", line)
		require.Equal(t, "Metadata", r.Level)
		require.NotContains(t, []string{"leases", "events"}, r.ObjectRef.Resource)
		created = created || r.Verb == "create" && r.ObjectRef.Resource == "secrets" && r.ObjectRef.Name == "canary" && r.User.Username == "berth:admin"
		kubelet = kubelet || r.ObjectRef.Resource == "secrets" && r.User.Username == "system:node:"+homeNode
	}
	require.True(t, created, "who created the Secret")
	require.True(t, kubelet, "who read it")
}

// checkPeople makes kubeconfigs for people and uses them.
func (c *cluster) checkPeople(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "anna.kubeconfig")
	c.mustRun("kubeconfig", "--user", "anna", "--group", "developers", "--ttl", "10m", "-o", file)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	config, err := clientcmd.LoadFromFile(file)
	require.NoError(t, err)
	cert := parseCertificate(t, config.AuthInfos["anna"].ClientCertificateData)
	require.Equal(t, "anna", cert.Subject.CommonName)
	require.Equal(t, []string{"developers"}, cert.Subject.Organization)
	require.Less(t, time.Until(cert.NotAfter), 11*time.Minute)

	as := func(args ...string) (string, error) {
		return c.run(append([]string{"kubectl", "--kubeconfig", file}, args...)...)
	}
	out, err := as("get", "pods")
	require.Error(t, err)
	require.Contains(t, out, "Forbidden")
	c.mustRun("kubectl", "create", "rolebinding", "developers", "--clusterrole=view", "--group=developers")
	_, err = as("get", "pods")
	require.NoError(t, err)
	_, err = as("get", "secrets")
	require.Error(t, err, "the role view does not show Secrets")
	require.Empty(t, strings.TrimSpace(c.mustRun("kubectl", "get", "certificatesigningrequests", "-o", "name")), "the request is deleted")

	out, err = c.run("kubeconfig", "--user", "eve", "--group", "system:masters")
	require.Error(t, err)
	require.Contains(t, out, "admin.kubeconfig")
	out, err = c.run("kubeconfig")
	require.Error(t, err)
	require.Contains(t, out, "--user")
}

// checkModes looks for files with keys, Secrets or logs that others may read, and for what others may write.
func (c *cluster) checkModes(t *testing.T) {
	t.Helper()
	for _, path := range []string{"pki", "kubeconfigs", "etcd"} {
		info, err := os.Stat(filepath.Join(c.dataDir, path))
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, path)
	}
	for _, path := range []string{"admin.kubeconfig", "cluster.json", "log/audit.log"} {
		info, err := os.Stat(filepath.Join(c.dataDir, path))
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, path)
	}
	err := filepath.WalkDir(c.dataDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // files come and go
		}
		if entry.IsDir() && (entry.Name() == "pods" || entry.Name() == "containerd" || entry.Name() == "volumes") {
			return fs.SkipDir // the Pods' own files
		}
		if info, err := entry.Info(); err == nil && info.Mode().Type()&(fs.ModeSymlink|fs.ModeSocket) == 0 {
			require.Zero(t, info.Mode().Perm()&0o022, "others may write %s", path)
		}
		return nil
	})
	require.NoError(t, err)
}

func parseCertificate(t *testing.T, data []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(data)
	require.NotNil(t, block)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}
