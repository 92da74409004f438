package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/kubelet/cm"
)

// unifiedCgroup makes a cgroup with a memory limit on a machine with cgroup v2 alone.
func unifiedCgroup(t *testing.T, limit int64) (dir string) {
	t.Helper()
	const root = "/sys/fs/cgroup"
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil || !strings.Contains(string(controllers), "memory") || os.Getuid() != 0 {
		t.Skip("needs root and cgroup v2")
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0))
	dir = filepath.Join(root, fmt.Sprintf("berth-test-%d", os.Getpid()))
	require.NoError(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "memory.max"), fmt.Append(nil, limit), 0))
	return dir
}

// fill has a process in the cgroup write a file, whose cached part is memory of the cgroup. It is not in /tmp, which may be memory that
// cannot be freed.
func fill(t *testing.T, cgroup string, size int64) {
	t.Helper()
	group, err := os.Open(cgroup)
	require.NoError(t, err)
	defer group.Close()
	dir, err := os.MkdirTemp("/var/tmp", "berth-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	cmd := exec.Command("dd", "if=/dev/zero", "of="+filepath.Join(dir, "file"), "bs=64k", fmt.Sprintf("count=%d", size/(64<<10)))
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestKernelReportsTheLimitOfAllPods reaches the limit of a cgroup, which memory.events reports, and observes stalls of the
// machine and of the cgroup.
func TestKernelReportsTheLimitOfAllPods(t *testing.T) {
	const limit = 32 << 20
	dir := unifiedCgroup(t, limit)
	pods := cm.Dirs{Memory: dir, Unified: true}
	fds := openLimitEvents(pods)
	require.Len(t, fds, 1)
	defer unix.Close(fds[0])
	if _, err := os.Stat(machineStall); err == nil {
		stalls := openStalls(pods)
		require.Len(t, stalls, 2, "the machine and all Pods")
		for _, fd := range stalls {
			require.NoError(t, unix.Close(fd))
		}
	} else {
		t.Log("the kernel has no pressure stall information")
	}
	events := []unix.PollFd{{Fd: int32(fds[0]), Events: unix.POLLIN}}
	n, err := unix.Poll(events, 0)
	require.NoError(t, err)
	require.Zero(t, n, "nothing has happened yet")

	here := t.TempDir()
	m := newMachine(t, here, &runtime{images: here, containers: here}, pods)
	ctx, cancel := context.WithCancel(t.Context())
	reports, done := make(chan struct{}, 1), make(chan error)
	go func() {
		done <- m.Watch(ctx, func() {
			select {
			case reports <- struct{}{}:
			default:
			}
		})
	}()
	require.Eventually(t, func() bool {
		m.events.mu.Lock()
		defer m.events.mu.Unlock()
		return m.events.epoll >= 0
	}, time.Minute, time.Millisecond)
	fill(t, dir, 4*limit)
	n, err = unix.Poll(events, int(time.Minute/time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, 1, n, "the kernel has not reported that the limit was reached")
	select {
	case <-reports:
	case <-time.After(time.Minute):
		require.Fail(t, "the manager was not woken")
	}
	cancel()
	require.NoError(t, <-done)
}
