package freeze

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
)

// guardEnv is set for the guard, which is this test's program.
const guardEnv = "BERTH_TEST_GUARD"

func TestMain(m *testing.M) {
	if os.Getenv(guardEnv) != "" {
		target, err := ParseArgs(os.Args[1:])
		if err == nil {
			err = RunGuard(os.Stdin, target)
		}
		if err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func guard(target Target) *exec.Cmd {
	cmd := exec.Command(os.Args[0], target.Args()...)
	cmd.Env = append(os.Environ(), guardEnv+"=1")
	cmd.Stderr = os.Stderr
	return cmd
}

// startTree starts a process with two children and returns it once they run, with what they write.
func startTree(t *testing.T) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "sleep 1000 & sleep 1000 & echo started; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	line := make([]byte, len("started\n"))
	_, err = io.ReadFull(out, line)
	require.NoError(t, err)
	return cmd, out
}

// stopped returns how many of the processes are stopped.
func stopped(t *testing.T, target Target) (count, all int) {
	t.Helper()
	processes, err := target.components()
	require.NoError(t, err)
	for _, one := range processes {
		if one.stopped {
			count++
		}
	}
	return count, len(processes)
}

func TestAllProcessesStopAndContinue(t *testing.T) {
	root, _ := startTree(t)
	target := Target{Supervisor: root.Process.Pid, Cgroup: "/berth-test-" + strconv.Itoa(os.Getpid()), Disks: t.TempDir()}
	frozen, err := Freeze(t.Context(), target, guard(target))
	require.NoError(t, err)
	require.False(t, frozen.Limited, "it has no terminal")
	count, all := stopped(t, target)
	require.Equal(t, 3, all)
	require.Equal(t, 3, count)
	require.NoError(t, frozen.Thaw())
	count, _ = stopped(t, target)
	require.Zero(t, count)
}

func TestGuardContinuesWhenItsParentIsKilled(t *testing.T) {
	root, _ := startTree(t)
	target := Target{Supervisor: root.Process.Pid, Cgroup: "/berth-test-" + strconv.Itoa(os.Getpid()), Disks: t.TempDir()}
	frozen, err := Freeze(t.Context(), target, guard(target))
	require.NoError(t, err)
	// The kernel closes the pipe of a process that ends.
	require.NoError(t, frozen.release.Close())
	require.NoError(t, frozen.guard.Wait())
	count, _ := stopped(t, target)
	require.Zero(t, count)
}

func TestEndedClusterIsAnError(t *testing.T) {
	cmd := exec.Command("true")
	require.NoError(t, cmd.Run())
	target := Target{Supervisor: cmd.Process.Pid, Cgroup: "/berth-test", Disks: t.TempDir()}
	_, err := Freeze(t.Context(), target, guard(target))
	require.ErrorContains(t, err, "has ended")
}

func TestOuterProcessOfNamespacesGoesOn(t *testing.T) {
	root, _ := startTree(t)
	target := Target{Supervisor: root.Process.Pid, Isolated: true, Cgroup: "/berth-test", Disks: t.TempDir()}
	processes, err := target.components()
	require.NoError(t, err)
	require.Len(t, processes, 2)
	require.False(t, slices.ContainsFunc(processes, func(p process) bool { return p.pid == root.Process.Pid }))
}

func TestProcessesOfPodsAreKnownByTheirCgroup(t *testing.T) {
	proc := t.TempDir()
	for pid, cgroups := range map[string]string{
		"1": "4:memory:/berth-0123abcd/kubepods/podx/y\n0::/\n",
		"2": "0::/berth-0123abcd\n",
		"3": "4:memory:/berth-0123abcde/x\n0::/user.slice\n",
	} {
		require.NoError(t, os.Mkdir(filepath.Join(proc, pid), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(proc, pid, "cgroup"), []byte(cgroups), 0o600))
	}
	target := Target{Cgroup: "/berth-0123abcd"}
	require.True(t, target.isOfPod(proc, 1))
	require.True(t, target.isOfPod(proc, 2))
	require.False(t, target.isOfPod(proc, 3))
	require.False(t, target.isOfPod(proc, 4))
}

func TestStatOfAProcess(t *testing.T) {
	one, err := parseStat(7, "7 (a) T (b) S 1 7 7 34816 7 4194304 0")
	require.NoError(t, err)
	require.Equal(t, process{pid: 7, parent: 1, terminal: true}, one)
	one, err = parseStat(8, "8 (x) T 7 7 7 0 -1")
	require.NoError(t, err)
	require.Equal(t, process{pid: 8, parent: 7, stopped: true}, one)
	_, err = parseStat(9, "9 (x")
	require.Error(t, err)
}

func TestFreezersOfBothVersionsOfCgroups(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	for _, file := range []string{filepath.Join(v1, "berth-x", "freezer.state"), filepath.Join(v2, "berth-x", "cgroup.freeze")} {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, nil, 0o600))
	}
	mounts := []*mountinfo.Info{
		{FSType: "cgroup", Mountpoint: v1, VFSOptions: "rw,freezer"}, {FSType: "cgroup", Mountpoint: t.TempDir(), VFSOptions: "rw,memory"},
		{FSType: "cgroup2", Mountpoint: v2}, {FSType: "cgroup2", Mountpoint: t.TempDir()},
	}
	require.Equal(t, "FROZEN", freezerOf("/berth-x", mounts).freeze, "of both it is v1's")
	slices.Reverse(mounts)
	require.Equal(t, "FROZEN", freezerOf("/berth-x", mounts).freeze)
	require.Nil(t, freezerOf("/berth-y", mounts))
	found := freezerOf("/berth-x", mounts[:2])
	require.Equal(t, "1", found.freeze)
	require.NoError(t, os.WriteFile(found.state, nil, 0o600))
	frozen, err := found.isFrozen()
	require.NoError(t, err)
	require.False(t, frozen)
	require.NoError(t, os.WriteFile(found.state, []byte("populated 1\nfrozen 1\n"), 0o600))
	frozen, err = found.isFrozen()
	require.NoError(t, err)
	require.True(t, frozen)
}
