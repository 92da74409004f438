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
// server: among them the process that is killed again and again while claims come and go. What provisions has the
// rights of berth:provision, no more.
func TestProvisionOnAnAPIServer(t *testing.T) {
	c := newCluster(t, 245)
	c.up("--unsafe-no-fsync")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-race", "-count=1", "-v", "-run", "^TestReal", "./provision/...")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "BERTH_TEST_KUBECONFIG="+filepath.Join(c.dataDir, "admin.kubeconfig"),
		"BERTH_TEST_PROVISION_KUBECONFIG="+filepath.Join(c.dataDir, "kubeconfigs", "provision.kubeconfig"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "--- SKIP")
	require.Equal(t, 5, strings.Count(string(out), "--- PASS: TestReal"), "%s", out)
	c.stop()
	require.Empty(t, c.leftovers())
}
