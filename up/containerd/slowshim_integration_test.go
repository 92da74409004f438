//go:build integration

package containerd_test

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/up/containerd"
)

// shimPause is how long a shim gives no answer: longer than containerd waits for one by its own defaults, 5 s when it
// connects to a shim, 2 s when it asks how a task fares.
const shimPause = 7 * time.Second

// TestPodsOutliveSlowShims has a shim give no answer while containerd starts, as on a machine with too much to do: when
// containerd connects to it, and when it then asks how the Pod fares. Containerd takes a shim that it gives up for dead,
// and kills what runs there.
func TestPodsOutliveSlowShims(t *testing.T) {
	n := newFixture(t)
	p, shim, pid := n.runOne(t, "slow")
	// It is stopped when containerd says this, or before containerd runs.
	for _, at := range []string{"", "io.containerd.grpc.v1.cri"} {
		n.kill(t)
		began, err := n.log.Seek(0, io.SeekEnd)
		require.NoError(t, err)
		if at == "" {
			require.NoError(t, syscall.Kill(shim, syscall.SIGSTOP))
		}
		var stopped sync.WaitGroup
		if at != "" {
			stopped.Go(func() { n.stopShimAt(t, began, at, shim) })
		} else {
			time.AfterFunc(shimPause, func() { _ = syscall.Kill(shim, syscall.SIGCONT) })
		}
		n.start(t)
		stopped.Wait()
		boxes, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		require.Len(t, boxes.Items, 1)
		require.Equal(t, runtimeapi.PodSandboxState_SANDBOX_READY, boxes.Items[0].State, at)
		status, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: p.container})
		require.NoError(t, err)
		require.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, status.Status.State, "%q: %v", at, status)
		require.Equal(t, pid, n.pidOf(t, p.container))
	}
	n.end(t, p)
	n.stop(t)
	require.NoError(t, n.RemoveDeadSockets())
	n.requireNothingLeft(t)
	n.clean(t)
}

// TestPodsOutliveAnEndDuringTheStart ends containerd while it connects to its shims, which it does one after the other;
// one is stopped so that it is at it. Containerd then starts once more, and the Pod goes on.
func TestPodsOutliveAnEndDuringTheStart(t *testing.T) {
	n := newFixture(t)
	p, shim, pid := n.runOne(t, "start")
	n.kill(t)
	require.NoError(t, syscall.Kill(shim, syscall.SIGSTOP))
	began, err := n.log.Seek(0, io.SeekEnd)
	require.NoError(t, err)
	n.launch(t)
	n.waitForLog(t, began, "connecting to shim "+p.sandbox)
	require.NoError(t, n.daemon.Process.Signal(containerd.StopSignal))
	_ = n.daemon.Wait() // it was ended
	require.NoError(t, syscall.Kill(shim, syscall.SIGCONT))
	n.start(t)
	boxes, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	require.Len(t, boxes.Items, 1)
	require.Equal(t, runtimeapi.PodSandboxState_SANDBOX_READY, boxes.Items[0].State)
	require.Equal(t, pid, n.pidOf(t, p.container))
	n.end(t, p)
	n.stop(t)
	require.NoError(t, n.RemoveDeadSockets())
	n.requireNothingLeft(t)
	n.clean(t)
}

// runOne starts containerd and runs a Pod in it, with this shim and this process.
func (n *fixture) runOne(t testing.TB, name string) (p pod, shim, pid int) {
	n.start(t)
	n.importImages(t)
	p = n.run(t, n.sandbox(name, t.TempDir(), false), volume(t))
	shim = n.shimOf(t, p.sandbox)
	t.Cleanup(func() {
		if t.Failed() { // containerd may know it no more
			_ = syscall.Kill(shim, syscall.SIGKILL)
		}
	})
	return p, shim, n.pidOf(t, p.container)
}

// waitForLog waits until containerd has said a word in its log after an offset, or the test ends.
func (n *fixture) waitForLog(t testing.TB, offset int64, word string) {
	data := make([]byte, 1<<20)
	for t.Context().Err() == nil {
		size, _ := n.log.ReadAt(data, offset) // it ends where containerd has come to
		if bytes.Contains(data[:size], []byte(word)) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// stopShimAt stops a shim for a while as soon as containerd, which is starting, has said a word in its log after an offset.
// Containerd stands still meanwhile, so that it cannot be ahead.
func (n *fixture) stopShimAt(t testing.TB, offset int64, word string, shim int) {
	n.waitForLog(t, offset, word)
	if t.Context().Err() != nil {
		return
	}
	daemon := n.daemon.Process
	_ = daemon.Signal(syscall.SIGSTOP)
	_ = syscall.Kill(shim, syscall.SIGSTOP)
	time.AfterFunc(shimPause, func() { _ = syscall.Kill(shim, syscall.SIGCONT) })
	_ = daemon.Signal(syscall.SIGCONT)
}

// shimID is the process of the shim of a sandbox.
func (n *fixture) shimOf(t testing.TB, sandbox string) int {
	for _, path := range glob(t, "/proc/[0-9]*/cmdline") {
		command, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(command), "containerd-shim") && strings.Contains(string(command), "\x00"+sandbox+"\x00") {
			pid, err := strconv.Atoi(strings.Split(path, "/")[2])
			require.NoError(t, err)
			return pid
		}
	}
	require.Fail(t, "no shim", sandbox)
	return 0
}

// pidOf is the first process of a container.
func (n *fixture) pidOf(t testing.TB, container string) int {
	data, err := os.ReadFile(n.State() + "/io.containerd.runtime.v2.task/k8s.io/" + container + "/init.pid")
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0), "it has ended")
	return pid
}
