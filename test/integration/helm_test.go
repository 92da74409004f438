//go:build integration

package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkHelm installs a chart with hooks, tests it, upgrades it, fails to upgrade it and rolls it back.
func checkHelm(t *testing.T, c *cluster) {
	page := func() string {
		return c.mustRun("kubectl", "exec", "deployment/site", "--", "/bin/busybox", "wget", "-qO-", "http://site.default.svc.cluster.local")
	}
	c.helm("install", "site", "testdata/chart", "--wait", "--timeout", waitTimeout.String())
	require.Equal(t, "one", page())
	require.Contains(t, c.mustRun("kubectl", "logs", "job/site-migration"), "migrate to one", "the hook before the install")
	c.helm("test", "site", "--timeout", waitTimeout.String())

	c.helm("upgrade", "site", "testdata/chart", "--set", "text=two", "--wait", "--timeout", waitTimeout.String())
	require.Equal(t, "two", page())
	require.Contains(t, c.mustRun("kubectl", "logs", "job/site-migration"), "migrate to two", "the hook before the upgrade")
	c.helm("test", "site", "--timeout", waitTimeout.String())

	_, err := c.tryHelm("upgrade", "site", "testdata/chart", "--set", "text=three,brokenMigration=true", "--wait", "--timeout", waitTimeout.String())
	require.Error(t, err, "its hook fails")
	require.Equal(t, "two", page())
	c.helm("rollback", "site", "1", "--wait", "--timeout", waitTimeout.String())
	require.Equal(t, "one", page())
	history := c.helm("history", "site")
	require.Contains(t, history, "failed")
	require.Contains(t, history, "Rollback to 1")

	c.helm("uninstall", "site", "--wait")
	out := c.mustRun("kubectl", "get", "deployments,replicasets,services,configmaps,pods", "-l", "app.kubernetes.io/managed-by=Helm", "-o", "name")
	require.Empty(t, strings.TrimSpace(out))
}

// helm calls Helm, which must succeed.
func (c *cluster) helm(args ...string) string {
	c.t.Helper()
	out, err := c.tryHelm(args...)
	require.NoError(c.t, err, "helm %s:\n%s", strings.Join(args, " "), out)
	return out
}

func (c *cluster) tryHelm(args ...string) (string, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*waitTimeout)
	defer cancel()
	home := c.t.TempDir()
	cmd := exec.CommandContext(ctx, thirdPartyBinary(c.t, "helm"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dataDir, "admin.kubeconfig"), "HOME="+home, "HELM_DRIVER=secret")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
