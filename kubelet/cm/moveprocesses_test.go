package cm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// containerRoot is a group of version 2 as a container sees it at the top: a real one, with a process in it.
func containerRoot(t *testing.T) (Hierarchy, *exec.Cmd) {
	t.Helper()
	hierarchies, err := FindHierarchies()
	require.NoError(t, err)
	for _, h := range hierarchies {
		if !h.Unified || h.Root != "/" || len(h.Controllers) == 0 {
			continue
		}
		dir := filepath.Join(h.Dir, fmt.Sprintf("cm-test-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no group of version 2 can be made here: %v", err)
		}
		process := exec.Command("sleep", "1000")
		require.NoError(t, process.Start())
		t.Cleanup(func() {
			_ = process.Process.Kill()
			_ = process.Wait()
			for _, below := range []string{"berth/kubepods", "berth", initCgroup, ""} {
				_ = os.Remove(filepath.Join(dir, below)) // not all of them were made
			}
			require.NoDirExists(t, dir)
		})
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(process.Process.Pid)), 0o644))
		have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		require.NoError(t, err)
		if h.Controllers = strings.Fields(string(have)); len(h.Controllers) == 0 {
			t.Skip("the machine's root gives no controllers of version 2 to others")
		}
		h.Dir = dir
		return h, process
	}
	t.Skip("no controllers of version 2 here")
	return Hierarchy{}, nil
}

func TestContainerRootIsEmptied(t *testing.T) {
	h, process := containerRoot(t)
	never := func(string, error) bool { return false }
	require.NoError(t, h.ensure(cgroupName{"berth", "kubepods"}, Limits{}, never))
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", process.Process.Pid))
	require.NoError(t, err)
	require.Contains(t, string(group), "/"+filepath.Base(h.Dir)+"/"+initCgroup+"\n")
	require.NoError(t, h.ensure(cgroupName{"berth", "kubepods"}, Limits{}, never), "it may be done again")
}

// TestContainerRootWithControllersOfThreadsIsEmptied has controllers that the kernel enables although there are processes.
func TestContainerRootWithControllersOfThreadsIsEmptied(t *testing.T) {
	h, process := containerRoot(t)
	if !slices.Contains(h.Controllers, "cpu") {
		t.Skip("needs the controller cpu of version 2")
	}
	require.NoError(t, enable(h.Dir, "cpu"))
	require.NoError(t, h.ensure(cgroupName{"berth", "kubepods"}, Limits{}, func(string, error) bool { return false }))
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", process.Process.Pid))
	require.NoError(t, err)
	require.Contains(t, string(group), "/"+filepath.Base(h.Dir)+"/"+initCgroup+"\n")
	enabled, err := os.ReadFile(filepath.Join(h.Dir, "cgroup.subtree_control"))
	require.NoError(t, err)
	require.Subset(t, strings.Fields(string(enabled)), []string{"cpu", "memory"})
}

func TestCgroupsBelowTheRootAreNotEmptied(t *testing.T) {
	h, process := containerRoot(t)
	inner := filepath.Join(h.Dir, "berth")
	require.NoError(t, os.Mkdir(inner, 0o755))
	procs := filepath.Join(inner, "cgroup.procs")
	require.NoError(t, os.WriteFile(procs, []byte(strconv.Itoa(process.Process.Pid)), 0o644))
	err := h.ensure(cgroupName{"berth", "kubepods"}, Limits{}, func(string, error) bool { return false })
	require.ErrorContains(t, err, "busy", "whoever put it there is to answer for it")
	left, err := os.ReadFile(procs)
	require.NoError(t, err)
	require.NotEmpty(t, left)
}
