//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/pidfile"
)

// children are the processes of a cluster by the names of their pid files, with the names by which the supervisor reports them.
var children = map[string]string{
	"node": "node", "containerd": "containerd", "kube-proxy": "kube-proxy", "dns": "dns", "controlplane": "control plane",
}

// TestChildrenOfBerthUpMayDie kills each process of a cluster in turn, then stops all of them at once, so that they hang: each is
// started again, which the cluster says, and nothing else notices.
func TestChildrenOfBerthUpMayDie(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := newClusterWithServices(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(serverPod("echo", "echo", "exec /bin/busybox nc -ll -p 9000 -e /bin/busybox cat"))
	c.apply(serviceManifest("echo", `"type": "NodePort", "selector": {"app": "echo"}, "ports": [{"name": "echo", "port": 9000}]`))
	before := c.waitPod("app=echo", "ready", isReady)
	standing := c.dialEcho(t, c.gateway()+":"+c.mustRun("kubectl", "get", "service", "echo", "-o", "jsonpath={.spec.ports[0].nodePort}"))
	api := c.watchAPI(t)

	number := 0
	unharmed := func(victim string) {
		t.Helper()
		require.NoError(t, standing.exchange("after the end of "+victim))
		number++
		name := fmt.Sprintf("late-%d", number)
		manifest := filepath.Join(t.TempDir(), "manifest.yaml")
		require.NoError(t, os.WriteFile(manifest, []byte(serverPod(name, name, "exec /bin/busybox sleep 1000000")), 0o600))
		var out string
		require.NoError(t, c.poll(func(context.Context) bool { // the API server may still be starting
			var err error
			out, err = c.run("kubectl", "apply", "-f", manifest)
			return err == nil
		}), "%s", out)
		c.waitPod("app="+name, "ready", isReady)
		require.NoError(t, standing.exchange("after the return of "+victim))
		pod := c.waitPod("app=echo", "ready", isReady)
		require.Equal(t, before.UID, pod.UID)
		require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, pod.Status.ContainerStatuses[0].ContainerID)
		require.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
		require.Equal(t, before.Status.PodIP, pod.Status.PodIP)
	}
	for victim, name := range children {
		pids := c.childPIDs(t)
		failed := api.failed.Load()
		began := time.Now()
		require.NoError(t, syscall.Kill(pids[victim], syscall.SIGKILL))
		c.out.waitFor(t, name+" exited unexpectedly (signal: killed)", c.ended)
		after := c.waitChild(t, victim, pids[victim])
		t.Logf("%s runs again after %v", victim, time.Since(began).Round(time.Millisecond))
		unharmed(victim)
		pids[victim] = after
		require.Equal(t, pids, c.childPIDs(t), "nothing else is started again after the end of %s", victim)
		if victim != "controlplane" {
			require.Equal(t, failed, api.failed.Load(), "no request fails at the end of %s", victim)
		}
	}
	pids := c.childPIDs(t)
	c.waitWatched(t)
	began := time.Now()
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	require.NoError(t, standing.exchange("while everything hangs"))
	for victim, name := range children {
		c.waitChild(t, victim, pids[victim])
		c.out.waitFor(t, name+" hung and was killed", c.ended)
		t.Logf("%s, which hung, runs again after %v", victim, time.Since(began).Round(time.Millisecond))
	}
	unharmed("everything")
	c.stop()
	require.Empty(t, c.leftovers())
}

// TestStartIsReportedAlthoughTheNodeProcessHasEnded kills the node's process before anything is ready: the next one prints what the user waits
// for, and applies the demo.
func TestStartIsReportedAlthoughTheNodeProcessHasEnded(t *testing.T) {
	c := newCluster(t)
	c.launch("--unsafe-no-fsync", "--demo")
	pid := c.waitChild(t, "node", 0)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	c.out.waitFor(t, "node exited unexpectedly (signal: killed)", c.ended)
	c.out.waitFor(t, "is ready after", c.ended)
	c.out.waitFor(t, "delete it", c.ended)
	after := c.waitChild(t, "node", pid)
	require.NoError(t, syscall.Kill(after, syscall.SIGKILL))
	c.out.waitFor(t, "is ready again", c.ended)
	require.Equal(t, 1, strings.Count(c.out.String(), "is ready after"))
	c.stop()
	require.Empty(t, c.leftovers())
}

// waitWatched waits until each child has responded after its last start: before that it counts as starting for long.
func (c *cluster) waitWatched(t *testing.T) {
	t.Helper()
	var log []byte
	require.NoError(t, c.poll(func(context.Context) bool {
		var err error
		log, err = os.ReadFile(filepath.Join(c.dataDir, "log", "berth.log"))
		// Each has started twice: with the cluster, and after its end.
		return err == nil && strings.Count(string(log), `msg="program responds"`) >= 2*len(children)
	}), "%s", log)
}

// childPIDs returns the processes of the cluster's pid files.
func (c *cluster) childPIDs(t *testing.T) map[string]int {
	t.Helper()
	pids := make(map[string]int)
	for name := range children {
		pids[name] = pidfile.Running(pidfile.Proc, filepath.Join(c.runDir(), name+".pid"))
		require.NotZero(t, pids[name], name)
	}
	return pids
}

// waitChild waits until another process than the one before is the child, and returns it.
func (c *cluster) waitChild(t *testing.T, name string, before int) (pid int) {
	t.Helper()
	require.NoError(t, c.poll(func(context.Context) bool {
		pid = pidfile.Running(pidfile.Proc, filepath.Join(c.runDir(), name+".pid"))
		return pid != 0 && pid != before
	}), "%s is not started again; the cluster printed:\n%s", name, c.out)
	return pid
}

// apiClient sends requests, one after the other.
type apiClient struct{ failed atomic.Int64 }

// watchAPI starts an apiClient that runs until the test ends.
func (c *cluster) watchAPI(t *testing.T) *apiClient {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	client, config := c.client(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "from-a-client-"}}
	a := new(apiClient)
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			_, err := client.CoreV1().ConfigMaps("default").Create(ctx, config.DeepCopy(), metav1.CreateOptions{})
			if err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "context canceled") {
				a.failed.Add(1)
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return a
}
