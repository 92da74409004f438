//go:build integration

package containerd_test

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// TestPodOnTheBridge goes the whole way: containerd up, images in, a Pod with an address that serves its page,
// exec, logs, events, all of it away again, and nothing left.
func TestPodOnTheBridge(t *testing.T) {
	n := newFixture(t)
	t.Logf("machine: %+v", n.Machine)
	t.Logf("first start to ready: %s", n.start(t))
	n.importImages(t)
	events, err := n.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	require.NoError(t, err)

	logs, data := t.TempDir(), volume(t)
	p := n.run(t, n.sandbox("bridge", logs, false), data)
	t.Logf("cgroups while it runs: %q", n.cgroups(t))
	status, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.sandbox})
	require.NoError(t, err)
	ip := status.Status.Network.Ip
	require.Equal(t, n.Gateway.Next().String(), ip)
	require.Contains(t, get(t, "http://"+ip+":8080/"), "visit")
	require.Equal(t, "1\n", get(t, "http://"+ip+":8080/count"))

	exec, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: p.container, Cmd: []string{"/demo", "-v"}, Timeout: int64(waitTimeout.Seconds()),
	})
	require.NoError(t, err)
	require.Zero(t, exec.ExitCode)
	require.Equal(t, "demo dev\n", string(exec.Stdout))
	require.Eventually(t, func() bool { // containerd writes it down after it was said
		log, err := os.ReadFile(filepath.Join(logs, "demo.log"))
		return err == nil && strings.Contains(string(log), " stdout F demo dev: counting visits in /data")
	}, waitTimeout, 5*time.Millisecond, "the container's log says what it does")

	t.Logf("stop and remove: %s", n.end(t, p))
	var seen []string
	for len(seen) == 0 || seen[len(seen)-1] != "CONTAINER_DELETED_EVENT sandbox" {
		event, err := events.Recv()
		require.NoError(t, err)
		what := "demo"
		if event.ContainerId == p.sandbox {
			what = "sandbox"
		}
		seen = append(seen, event.ContainerEventType.String()+" "+what)
	}
	t.Logf("events: %q", seen)
	require.Contains(t, seen, "CONTAINER_STARTED_EVENT demo")
	require.Contains(t, seen, "CONTAINER_STOPPED_EVENT demo")

	n.requireNothingLeft(t)
	t.Logf("cgroups after it: %q", n.cgroups(t))
	n.stop(t)
	t.Logf("second start to ready: %s", n.start(t))
	n.importImages(t)
	n.stop(t)
	n.requireNothingLeft(t)
	n.clean(t)
	require.Empty(t, n.cgroups(t))
}

// TestPodOutlivesContainerd kills containerd: the Pod goes on, and the next containerd knows it.
func TestPodOutlivesContainerd(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	n.importImages(t)
	p := n.run(t, n.sandbox("survivor", t.TempDir(), false), volume(t))
	require.NotEmpty(t, get(t, n.firstPod()+"/"))

	require.NoError(t, n.daemon.Process.Kill())
	_ = n.daemon.Wait()
	require.NoError(t, n.conn.Close())
	require.Equal(t, "1\n", get(t, n.firstPod()+"/count"))
	t.Logf("start with a Pod running: %s", n.start(t))
	state, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: p.container})
	require.NoError(t, err)
	require.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, state.Status.State)
	n.end(t, p)
	n.requireNothingLeft(t)
	n.stop(t)
	n.clean(t)
}

// TestTwoSideBySide runs two nodes at once; ending one leaves the other alone.
func TestTwoSideBySide(t *testing.T) {
	first, second := newFixture(t), newFixture(t)
	for _, n := range []*fixture{first, second} {
		n.start(t)
		n.importImages(t)
	}
	one := first.run(t, first.sandbox("twin", t.TempDir(), false), volume(t))
	two := second.run(t, second.sandbox("twin", t.TempDir(), false), volume(t))
	require.NotEmpty(t, get(t, first.firstPod()+"/"))
	first.end(t, one)
	first.stop(t)
	first.requireNothingLeft(t)
	first.clean(t)
	require.NotEmpty(t, get(t, second.firstPod()+"/"))
	require.Equal(t, "1\n", get(t, second.firstPod()+"/count"))

	// The socket of another containerd is recognised, not used.
	foreign := second.Config
	foreign.Root = first.Root
	require.ErrorContains(t, foreign.CheckFree(t.Context()), second.Root)
	require.NoError(t, second.CheckFree(t.Context()))
	require.NoError(t, first.CheckFree(t.Context()), "nothing listens there any more")

	second.end(t, two)
	second.stop(t)
	second.requireNothingLeft(t)
	second.clean(t)
}

// TestMasquerade adds the cluster's rule once, however often it is asked, and removes it.
func TestMasquerade(t *testing.T) {
	n := newFixture(t)
	rules := func() int {
		out, err := exec.Command("iptables", "-w", "5", "-t", "nat", "-S", "POSTROUTING").CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.Count(string(out), n.PodCIDR.String())
	}
	for range 2 {
		require.NoError(t, n.Masquerade(t.Context()))
		require.Equal(t, 1, rules())
	}
	for range 2 {
		require.NoError(t, n.Unmasquerade(t.Context()))
		require.Zero(t, rules())
	}
	n.PodCIDR = netip.Prefix{}
	require.ErrorContains(t, n.Masquerade(t.Context()), "iptables -C")
}

// BenchmarkFloor is what the three calls that every Pod needs take, and the two that end it, in median ms:
//
//	go test -tags integration -run '^$' -bench Floor -benchtime 20x ./up/containerd
func BenchmarkFloor(b *testing.B) {
	for name, hostNetwork := range map[string]bool{"hostNetwork": true, "bridge": false} {
		b.Run(name, func(b *testing.B) {
			n := newFixture(b)
			n.ClusterMasquerade = true // The rule is not needed to reach Pods from the machine itself.
			require.NoError(b, n.Write())
			n.start(b)
			n.importImages(b)
			data := volume(b)
			var took [4][]time.Duration
			for b.Loop() {
				p := n.run(b, n.sandbox("floor", b.TempDir(), hostNetwork), data)
				for i, step := range append(p.steps[:], n.end(b, p)) {
					took[i] = append(took[i], step)
				}
			}
			for i, step := range []string{"sandbox-ms", "create-ms", "start-ms", "end-ms"} {
				b.ReportMetric(float64(median(took[i]).Microseconds())/1000, step)
			}
			n.stop(b)
			n.clean(b)
		})
	}
}

// TestProbeWithoutContainerd says so at once.
func TestProbeWithoutContainerd(t *testing.T) {
	n := newFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, n.WaitReady(ctx, clock.RealClock{}), "last error")
}

// TestContainerdThatCannotRunPodsExits has something else in the place of a database that is made at each start: containerd exits, as its service
// for the kubelet needs it, and does not listen without that service.
func TestContainerdThatCannotRunPodsExits(t *testing.T) {
	n := newFixture(t)
	require.NoError(t, os.MkdirAll(filepath.Join(n.RunDir, "containerd", "io.containerd.mount-manager.v1.bolt", "mounts.db"), 0o700))
	n.launch(t)
	ended := make(chan error, 1)
	go func() { ended <- n.daemon.Wait() }()
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(waitTimeout):
		require.Fail(t, "containerd runs without its CRI service")
	}
	log, err := os.ReadFile(n.log.Name())
	require.NoError(t, err)
	require.Contains(t, string(log), "load required plugin io.containerd.grpc.v1.cri")
}
