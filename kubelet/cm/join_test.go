package cm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/stretchr/testify/require"
)

// TestJoin moves a process, also in the hierarchy without controllers that programs read its cgroup from.
func TestJoin(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	found, err := FindHierarchies()
	require.NoError(t, err)
	group := fmt.Sprintf("/berth-join-%d", os.Getpid())
	process := exec.Command("sleep", "1000")
	require.NoError(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		for _, h := range found {
			_ = os.Remove(filepath.Join(h.Dir, group)) // not each hierarchy has it
			require.NoDirExists(t, filepath.Join(h.Dir, group))
		}
	})
	m, err := New(Deps{}, Config{CgroupRoot: "/"})
	require.NoError(t, err)
	require.NoError(t, m.Join(group, process.Process.Pid))
	of, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", process.Process.Pid))
	require.NoError(t, err)
	checked := 0
	for _, h := range found {
		for _, name := range []string{"cpu", "memory", namedHierarchy} {
			if !h.Unified && slices.Contains(h.Controllers, name) {
				require.Equal(t, filepath.Join(h.Root, group), of[name], name)
				checked++
			}
		}
		if h.Unified && len(h.Controllers) > 0 {
			require.Equal(t, filepath.Join(h.Root, group), of[""])
			checked++
		}
	}
	require.NotZero(t, checked)
}
