//go:build vm

package vm

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	programs      = flag.String("programs", "../bin", "directory with Berth's built programs")
	tests         = flag.String("tests", "^(TestDemoKeepsItsDataWhateverHappens|TestStaticPods)$", "the integration tests to run in the machine")
	runtimeOfPods = flag.String("runtime", "", "the runtime of the Pods of TestIntegrationOnSystemd: runc or berth (default: that of berth up)")
)

// TestIntegrationOnSystemd runs Berth's own tests on a real cluster on a machine with systemd and cgroup v2.
func TestIntegrationOnSystemd(t *testing.T) {
	share := t.TempDir()
	copyClusterPrograms(t, share, "berth")
	runHost(t, "go", "-C", "..", "test", "-c", "-tags", "integration", "-o", filepath.Join(share, "integration.test"), "./test/integration")
	m := start(t, Options{Shares: []Share{{Dir: share, Path: "/berth/bin"}}, Name: "node"})
	require.NoError(t, m.CopyTo(t.Context(), "../examples", "/berth"))
	script := "mkdir -p /berth/test/integration && cd /berth/test/integration && BERTH_TEST_RUNTIME=" + quote(*runtimeOfPods) + " " +
		"exec /berth/bin/integration.test -test.v -test.timeout 50m -test.run " + quote(*tests)
	require.NoError(t, m.Run(t.Context(), script, IO{Stdout: t.Output(), Stderr: t.Output()}))
}

// runHost runs a program of the host and returns its output.
func runHost(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return string(out)
}
