//go:build integration

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProvisionOnAnAPIServer runs those tests of package provision and the provisioners below it that need a real API
// server: among them the process that is killed repeatedly while claims are created and deleted. The provisioner has the
// permissions of berth:provision and no more.
func TestProvisionOnAnAPIServer(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-race", "-count=1", "-v", "-run", "^TestReal", "./provision/...")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "BERTH_TEST_KUBECONFIG="+filepath.Join(c.dataDir, "admin.kubeconfig"),
		"BERTH_TEST_PROVISION_KUBECONFIG="+filepath.Join(c.dataDir, "kubeconfigs", "provision.kubeconfig"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "--- SKIP")
	require.Equal(t, 6, strings.Count(string(out), "--- PASS: TestReal"), "%s", out)
	checkExample(t, c)
	c.stop()
	require.Empty(t, c.leftovers())
}

// checkExample runs the provisioner of docs/provisioners.md.
func checkExample(t *testing.T, c *cluster) {
	t.Helper()
	binary, share := filepath.Join(t.TempDir(), "provisioner"), t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../examples/provisioner").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv("KUBECONFIG", filepath.Join(c.dataDir, "admin.kubeconfig"))
	beside(t, binary, share)
	c.apply(`{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "share"}, "provisioner": "example.com/share"}`)
	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {"storageClassName": "share",
		"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}}`)
	c.mustRun("kubectl", "wait", "pvc/shared", "--for=jsonpath={.status.phase}=Bound", "--timeout=2m")
	volumes, err := os.ReadDir(share)
	require.NoError(t, err)
	require.Len(t, volumes, 1)
	c.mustRun("kubectl", "delete", "pvc", "shared", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv/"+volumes[0].Name(), "--timeout=2m")
	volumes, err = os.ReadDir(share)
	require.NoError(t, err)
	require.Empty(t, volumes)
}
