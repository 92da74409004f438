package cm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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

// TestRemovePodWhileTheRuntimeMakesItsCgroups lets a cgroup of the Pod appear in a second hierarchy while that in the first is emptied.
func TestRemovePodWhileTheRuntimeMakesItsCgroups(t *testing.T) {
	cgroupslib.TestMode = true
	t.Cleanup(func() { cgroupslib.TestMode = false })
	hierarchies := []Hierarchy{{Dir: t.TempDir(), Controllers: []string{"cpu"}}, {Dir: t.TempDir(), Controllers: []string{"devices"}}}
	m, err := New(Deps{}, Config{Hierarchies: hierarchies})
	require.NoError(t, err)
	name := m.podCgroup(podOf("u-1", corev1.ResourceRequirements{})).cgroupfs()
	first, second := filepath.Join(hierarchies[0].Dir, name), filepath.Join(hierarchies[1].Dir, name)
	require.NoError(t, os.MkdirAll(first, 0o755))
	list := filepath.Join(first, "cgroup.procs") // who reads it waits for the writer
	require.NoError(t, unix.Mkfifo(list, 0o644))
	done := make(chan error, 1)
	go func() { done <- m.RemovePod(t.Context(), "u-1") }()
	writer, err := os.OpenFile(list, os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(second, "container"), 0o755))
	require.NoError(t, os.Remove(list))
	require.NoError(t, writer.Close())
	require.NoError(t, <-done)
	require.NoDirExists(t, first)
	require.NoDirExists(t, second)
}

func TestContainersAreThoseWithCgroups(t *testing.T) {
	dir := t.TempDir()
	id := strings.Repeat("0123456789abcdef", 4)
	for _, driver := range []Driver{DriverCgroupfs, DriverSystemd} {
		t.Run(string(driver), func(t *testing.T) {
			m, err := New(Deps{}, Config{Hierarchies: []Hierarchy{{Dir: dir, Controllers: []string{"memory"}}}, Driver: driver})
			require.NoError(t, err)
			pod := podOf("u-1", corev1.ResourceRequirements{})
			dirs, err := m.PodDirs(pod)
			require.NoError(t, err)
			found, err := dirs.Containers()
			require.NoError(t, err)
			require.Empty(t, found, "the Pod has no cgroup")
			for i, name := range append(ContainerCgroups(id), "crio-conmon-"+id+".scope", "init", id[:12]) {
				require.NoError(t, os.MkdirAll(filepath.Join(dir, m.CgroupParent(pod), name), 0o755))
				found, err := dirs.Containers()
				require.NoError(t, err)
				require.Len(t, found, min(i+1, len(ContainerCgroups(id))))
				require.Equal(t, id, found[0])
			}
		})
	}
}
