//go:build vm

package vm

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDisks runs tests of the CSI driver and of local volumes on a machine with the device mapper and cgroup v2, which the machine that
// builds may not have: the devices that containers get for raw block volumes, the limits of volumes by io.max, and project quotas. None of
// them may be skipped.
func TestDisks(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"internal/loopdev", "csidriver", "csidriver/iolimit", "provision/local"} {
		runHost(t, "go", "-C", "..", "test", "-c", "-o", filepath.Join(dir, filepath.Base(name)+".test"), "./"+name)
	}
	m := start(t, Options{Shares: []Share{{Dir: dir, Path: "/tests"}}, Name: "disks"})
	output(t, m, "modprobe loop && modprobe dm_mod && echo +io > /sys/fs/cgroup/cgroup.subtree_control")
	for name, tests := range map[string]string{
		"loopdev": "Mapping", "csidriver": "TestContainersGet|TestLimits|TestModified|TestReflinks|TestExpansion", "iolimit": "TestWrites|TestParse",
		"local": "TestSizeIsEnforcedByProjectQuota|TestAnInterruptedStepKeepsNoProject",
	} {
		script := "cd /tmp; /tests/" + name + ".test -test.v -test.run '" + tests + "' >out 2>&1; code=$?; cat out; ! grep -q SKIP out && exit $code"
		require.NoError(t, m.Run(t.Context(), script, IO{Stdout: t.Output(), Stderr: t.Output()}), name)
	}
}
