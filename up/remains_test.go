package up

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// machine is a root directory with what two clusters show of themselves.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"run/berth/0123abcd", "run/berth/run-1", "sys/fs/cgroup/memory/berth-0123abcd/kubepods",
		"sys/class/net/berth0123abcd", "proc/100/fd", "proc/101/fd", "proc/102/fd", "run/berth/" + clusterID("/data")} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	shim := "/bin/containerd-shim-runc-v2\x00-address\x00/run/berth/0123abcd/containerd.sock\x00"
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/100/cmdline"), []byte(shim), 0o600))
	require.NoError(t, os.Symlink("/data/lock", filepath.Join(root, "proc/101/fd/7")))
	return root
}

func TestLeftoversAreOfDeadClustersOnly(t *testing.T) {
	dead, err := Leftovers(machine(t))
	require.NoError(t, err)
	require.Len(t, dead, 1, "the other holds its lock")
	require.Equal(t, "0123abcd", dead[0].ID)
	require.Equal(t, []int{100}, dead[0].Shims)
	require.Len(t, dead[0].Cgroups, 1)
	require.True(t, dead[0].Bridge)
}

func TestAClusterWithAProcessLives(t *testing.T) {
	root := machine(t)
	command := "/bin/containerd\x00--config\x00/run/berth/0123abcd/config.toml\x00"
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/102/cmdline"), []byte(command), 0o600))
	dead, err := Leftovers(root)
	require.NoError(t, err)
	require.Empty(t, dead)
}
