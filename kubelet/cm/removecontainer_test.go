package cm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestRemoveContainer removes what a runtime that was killed leaves of a container: its cgroup in each hierarchy, in one of them with a
// process. Another container of the Pod goes on.
func TestRemoveContainer(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	hierarchies, err := FindHierarchies()
	require.NoError(t, err)
	m, err := New(Deps{}, Config{CgroupRoot: fmt.Sprintf("/berth-test-remove-%d", os.Getpid()), Hierarchies: hierarchies})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.RemoveRoot(context.WithoutCancel(t.Context()))) })
	require.NoError(t, m.EnsureRoot(t.Context()))
	pod := podOf("u-1", corev1.ResourceRequirements{})
	parent, err := m.EnsurePod(t.Context(), pod)
	require.NoError(t, err)
	var processes []*exec.Cmd
	for _, container := range []string{"interrupted", "runs"} {
		for i, h := range hierarchies {
			dir := filepath.Join(h.Dir, parent, container)
			require.NoError(t, os.MkdirAll(dir, 0o755))
			if i > 0 {
				continue
			}
			process := exec.Command("sleep", "1000")
			require.NoError(t, process.Start())
			processes = append(processes, process)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, process.Process.Pid), 0o644))
		}
	}
	require.NoError(t, m.RemoveContainer(t.Context(), pod, "interrupted"))
	require.NoError(t, m.RemoveContainer(t.Context(), pod, "interrupted"), "it is removed already")
	require.ErrorContains(t, processes[0].Wait(), "killed")
	for _, h := range hierarchies {
		require.NoDirExists(t, filepath.Join(h.Dir, parent, "interrupted"))
		require.DirExists(t, filepath.Join(h.Dir, parent, "runs"))
	}
	require.NoError(t, m.RemovePod(t.Context(), "u-1"))
	require.ErrorContains(t, processes[1].Wait(), "killed")
}
