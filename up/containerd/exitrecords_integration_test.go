//go:build integration

package containerd_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	client "github.com/containerd/containerd/v2/client"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/up/containerd"
)

// kill ends containerd with SIGKILL.
func (n *fixture) kill(t testing.TB) {
	require.NoError(t, n.conn.Close())
	require.NoError(t, n.daemon.Process.Kill())
	_ = n.daemon.Wait() // it was killed
}

// endFirst ends the first process of a container, as its own end would.
func endFirst(t testing.TB, n *fixture, container string) {
	pid := 0
	for _, dir := range glob(t, "/proc/[0-9]*/cgroup") {
		groups, err := os.ReadFile(dir)
		if err == nil && strings.Contains(string(groups), "/"+container) {
			var err error
			pid, err = strconv.Atoi(strings.Split(dir, "/")[2])
			require.NoError(t, err)
		}
	}
	require.NotZero(t, pid, "no process of container %s", container)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, waitTimeout, time.Millisecond)
}

// TestExitsThatContainerdLoses ends containers while containerd is away, while it starts, and while it runs. What
// containerd says of the first two is that they are unknown; ExitRecords knows.
func TestExitsThatContainerdLoses(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	n.importImages(t)
	logger := slog.New(slog.NewTextHandler(n.log, nil))
	exits, err := containerd.NewExitRecords(containerd.ExitRecordsDeps{Logger: logger}, n.Config)
	require.NoError(t, err)
	require.NoError(t, exits.Recover(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	follow := func() { following.Go(func() { _ = exits.Watch(ctx) }) } // it ends with containerd
	t.Cleanup(func() { cancel(); following.Wait() })
	follow()
	exits.FinishRecovery(t.Context())
	logs, data := t.TempDir(), volume(t)
	away := n.run(t, n.sandbox("away", logs, false), data)
	starting := n.run(t, n.sandbox("starting", logs, true), data)
	running := n.run(t, n.sandbox("running", logs, true), data)

	n.kill(t)
	endFirst(t, n, away.container)
	require.NoError(t, exits.Recover(t.Context()))
	endFirst(t, n, starting.container)
	follow()
	n.start(t)
	n.waitForWatch(t, exits)
	exits.FinishRecovery(t.Context())
	for _, p := range []pod{away, starting} {
		answer, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: p.container})
		require.NoError(t, err)
		t.Logf("containerd: %s %d %s", answer.Status.State, answer.Status.ExitCode, answer.Status.Reason)
		want := "Unknown"
		if n.Runtime == containerd.RuntimeBerth { // its shim keeps containerd from deleting the task
			want = "Error"
			require.EqualValues(t, 137, answer.Status.ExitCode)
		}
		require.Equal(t, want, answer.Status.Reason, "containerd knows the end now: Exits may be needless")
		code, finished, known := exits.Exit(t.Context(), p.container)
		require.True(t, known)
		require.EqualValues(t, 137, code)
		require.WithinDuration(t, time.Now(), finished, time.Minute)
	}
	_, _, known := exits.Exit(t.Context(), running.container)
	require.False(t, known, "it runs")
	endFirst(t, n, running.container)
	require.Eventually(t, func() bool {
		code, _, known := exits.Exit(t.Context(), running.container)
		return known && code == 137
	}, waitTimeout, time.Millisecond)

	for _, p := range []pod{away, starting, running} {
		n.end(t, p)
	}
	require.Eventually(t, func() bool { return len(glob(t, n.RunDir+"/exits/*")) == 0 }, waitTimeout, time.Millisecond,
		"what is known of containers that are gone is forgotten")
	n.stop(t)
	n.requireNothingLeft(t)
	n.clean(t)
}

// waitForWatch returns when exits receives containerd's events: it publishes a container's exit, as a shim would, until that
// is known, and then of the container's removal.
func (n *fixture) waitForWatch(t testing.TB, exits *containerd.ExitRecords) {
	direct, err := client.New(n.Socket(), client.WithDefaultNamespace("k8s.io"))
	require.NoError(t, err)
	defer direct.Close()
	const id = "published"
	publish := func(topic string, event proto.Message) {
		require.NoError(t, direct.EventService().Publish(t.Context(), topic, event))
	}
	known := func() bool { return len(glob(t, n.RunDir+"/exits/"+id)) > 0 }
	require.Eventually(t, func() bool {
		publish("/tasks/exit", &eventsapi.TaskExit{ContainerID: id, ID: id, ExitedAt: timestamppb.Now()})
		return known()
	}, waitTimeout, 5*time.Millisecond, "containerd's events are not watched")
	require.Eventually(t, func() bool {
		publish("/containers/delete", &eventsapi.ContainerDelete{ID: id})
		return !known()
	}, waitTimeout, 5*time.Millisecond)
}

// TestStrayShims cuts calls that start Pods off in the middle, by their callers and by killing containerd. Nothing of
// them stays, and a Pod that runs keeps its shim.
func TestStrayShims(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	n.importImages(t)
	logs := t.TempDir()
	lives := n.run(t, n.sandbox("lives", logs, false), volume(t))
	n.requireOrphansFound(t)
	var calls sync.WaitGroup
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(2+4*i)*time.Millisecond)
		_, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.sandbox("cut"+string(rune('a'+i)), logs, false)})
		cancel()
		if i%5 != 4 {
			continue
		}
		t.Logf("%d: %v", i, err)
		// The next containerd must not get the call of a goroutine that comes late: it goes to this one, and ends with it.
		client, config := n.RuntimeServiceClient, n.sandbox("killed"+string(rune('a'+i)), logs, false)
		calls.Go(func() {
			_, _ = client.RunPodSandbox(context.WithoutCancel(t.Context()), &runtimeapi.RunPodSandboxRequest{Config: config})
		})
		time.Sleep(time.Duration(5+6*i) * time.Millisecond) // a moment in the middle of the call
		n.kill(t)
		calls.Wait()
		before := n.NetworkNamespaces()
		require.NoError(t, n.RemoveDeadSockets())
		n.start(t)
		released, err := n.ReleaseNetworkNamespaces(t.Context(), before)
		require.NoError(t, err)
		ended, err := n.KillOrphanShims(t.Context())
		require.NoError(t, err)
		t.Logf("%d: released %d of %d network namespaces, ended shims %v", i, released, len(before), ended)
	}
	boxes, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	for _, box := range boxes.Items {
		if box.Id != lives.sandbox {
			_, err = n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: box.Id})
			require.NoError(t, err)
			_, err = n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: box.Id})
			require.NoError(t, err)
		}
	}
	_, err = n.KillOrphanShims(t.Context())
	require.NoError(t, err)
	_, err = n.DeleteOrphanContainers(t.Context())
	require.NoError(t, err)
	_, err = n.ReleaseAddresses(t.Context())
	require.NoError(t, err)
	status, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: lives.container})
	require.NoError(t, err)
	require.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, status.Status.State)
	n.end(t, lives)
	n.stop(t)
	require.NoError(t, n.RemoveDeadSockets())
	n.requireNothingLeft(t)
	n.clean(t)
}

// requireOrphansFound makes what a cut-off start leaves, whole: a shim without a bundle, a network namespace of no sandbox, the socket
// of a shim that is gone, addresses of no sandbox. Each is found; what belongs to another containerd, or to a shim's short-lived calls, is left.
func (n *fixture) requireOrphansFound(t testing.TB) {
	process := func(script, socket string, more ...string) *exec.Cmd {
		cmd := exec.Command("/bin/bash")
		// It waits by itself, and its child looks like itself only until that becomes another program.
		cmd.Args = append([]string{"containerd-shim-runc-v2", "-c", script, "-namespace", "k8s.io", "-id", "stray",
			"-address", socket}, more...)
		_, err := cmd.StdinPipe() // nothing is written
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		require.Eventually(t, func() bool { // Start returns a moment before the kernel shows the arguments
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
			return err == nil && len(line) > 0
		}, waitTimeout, time.Millisecond)
		return cmd
	}
	bundles := glob(t, n.State()+"/io.containerd.runtime.v2.task/k8s.io/*")
	require.Len(t, bundles, 2, "of the Pod that runs")
	hidden := filepath.Join(filepath.Dir(bundles[0]), ".hidden") // as a containerd leaves it that dies while it deletes it
	require.NoError(t, os.MkdirAll(hidden+"/rootfs", 0o700))
	spec := []byte(`{"annotations": {"io.kubernetes.cri.sandbox-id": "stray"}}`)
	require.NoError(t, os.WriteFile(hidden+"/config.json", spec, 0o600))
	child := filepath.Join(t.TempDir(), "pid") // of what stays of a container whose creation was cut off
	orphan := process("sleep 1000000 & until [ $(cat /proc/$!/comm) = sleep ]; do :; done; echo $! > "+child+".new; mv "+child+".new "+child+"; read", n.Socket())
	foreign, call := process("read", n.Socket()+"x"), process("read", n.Socket(), "-publish-binary", "x", "delete")
	require.Eventually(t, func() bool { return len(glob(t, child)) == 1 }, waitTimeout, time.Millisecond)
	content, err := os.ReadFile(child)
	require.NoError(t, err)
	started, err := strconv.Atoi(strings.TrimSpace(string(content)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(started, syscall.SIGKILL) })
	ended, err := n.KillOrphanShims(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"stray"}, ended)
	require.Error(t, orphan.Wait(), "it was killed")
	require.Eventually(t, func() bool { return !isRunning(started) }, waitTimeout, time.Millisecond, "its child runs on")
	for _, left := range []*exec.Cmd{foreign, call} {
		require.NoError(t, left.Process.Signal(syscall.Signal(0)))
		require.NoError(t, left.Process.Kill())
		_ = left.Wait() // it was killed
	}

	before := n.NetworkNamespaces()
	require.Len(t, before, 1, "of the Pod that runs")
	netns := filepath.Join(filepath.Dir(before[0]), "cni-01234567-0123-0123-0123-0123456789ab")
	require.NoError(t, os.WriteFile(netns, nil, 0o600))
	require.NoError(t, syscall.Mount("/proc/self/ns/net", netns, "", syscall.MS_BIND, ""))
	released, err := n.ReleaseNetworkNamespaces(t.Context(), n.NetworkNamespaces())
	require.NoError(t, err)
	require.Equal(t, 1, released)
	require.Equal(t, before, n.NetworkNamespaces())

	addresses := glob(t, n.RunDir+"/addresses/"+n.Bridge+"/10.*")
	require.Len(t, addresses, 1, "of the Pod that runs")
	last := n.PodCIDR.Addr().Next()
	for range 200 {
		last = last.Next()
	}
	dir := filepath.Dir(addresses[0])
	empty, late := filepath.Join(dir, last.String()), filepath.Join(dir, last.Next().String())
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.NoError(t, os.WriteFile(late, []byte(strings.Repeat("0", 64)+"\r\neth0"), 0o600))
	freed, err := n.ReleaseAddresses(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Base(empty), filepath.Base(late)}, freed)
	require.Equal(t, addresses, glob(t, dir+"/10.*"))

	begun := filepath.Join(n.RunDir, "runc", "k8s.io", "begun") // as runc leaves it when it is killed early
	require.NoError(t, os.Mkdir(begun, 0o700))
	deleted, err := n.DeleteOrphanContainers(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"begun"}, deleted)
	require.NoDirExists(t, begun)

	require.NoError(t, n.RemoveDeadBundles())
	require.NoDirExists(t, hidden)
	require.Equal(t, bundles, glob(t, filepath.Dir(hidden)+"/*"))

	sockets := glob(t, n.RunDir+"/s/*")
	require.NoError(t, os.WriteFile(n.RunDir+"/s/dead", nil, 0o600))
	require.NoError(t, n.RemoveDeadSockets())
	require.Equal(t, sockets, glob(t, n.RunDir+"/s/*"))
}

func glob(t testing.TB, pattern string) []string {
	found, err := filepath.Glob(pattern)
	require.NoError(t, err)
	return found
}

// isRunning reports whether a process runs; one that has ended and waits for its parent does not.
func isRunning(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(line) > 0
}
