//go:build integration

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/up/containerd"
)

// TestRuntimesSideBySide runs a Pod with each runtime in one containerd, and kills the shim of each.
func TestRuntimesSideBySide(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	n.importImages(t)
	data := volume(t)
	pods := make(map[string]pod)
	for _, runtime := range containerd.Runtimes() {
		pods[runtime] = n.runWith(t, n.sandbox("of-"+runtime, t.TempDir(), false), data, runtime)
	}
	count, err := containerd.CountPods(n.Socket())
	require.NoError(t, err)
	require.Equal(t, map[string]int{containerd.RuntimeRunc: 1, containerd.RuntimeBerth: 1}, count)
	for _, p := range pods {
		n.requireRuns(t, p)
		n.killShim(t, p.sandbox)
		n.waitExited(t, p)
		n.end(t, p)
	}
	n.requireNothingLeftExcept(t, n.RunDir+"/s/") // a killed shim does not remove its socket: RemoveDeadSockets does
	require.NoError(t, n.RemoveDeadSockets())
	n.requireNothingLeft(t)
	n.stop(t)
	n.clean(t)
}

// TestDefaultRuntimeChanges starts containerd again with another default, as an update does: a Pod that runs keeps its runtime, also for its
// next container, and the next Pod has the new one.
func TestDefaultRuntimeChanges(t *testing.T) {
	for from, to := range map[string]string{containerd.RuntimeRunc: containerd.RuntimeBerth, containerd.RuntimeBerth: containerd.RuntimeRunc} {
		t.Run("to "+to, func(t *testing.T) {
			n := newFixture(t)
			n.Runtime = from
			require.NoError(t, n.Write())
			n.start(t)
			n.importImages(t)
			data := volume(t)
			config := n.sandbox("earlier", t.TempDir(), false)
			earlier := n.run(t, config, data)
			n.stop(t)
			n.Runtime = to
			require.NoError(t, n.Write())
			n.start(t)

			n.requireRuns(t, earlier)
			_, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: earlier.container, Timeout: 5})
			require.NoError(t, err)
			_, err = n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: earlier.container})
			require.NoError(t, err)
			n.runContainer(t, &earlier, config, data, "again")
			n.requireRuns(t, earlier)
			next := n.run(t, n.sandbox("next", t.TempDir(), false), data)
			n.requireRuns(t, next)
			count, err := containerd.CountPods(n.Socket())
			require.NoError(t, err)
			require.Equal(t, map[string]int{from: 1, to: 1}, count)

			n.end(t, earlier)
			n.end(t, next)
			n.requireNothingLeft(t)
			n.stop(t)
			n.clean(t)
		})
	}
}

// requireRuns executes a command in the Pod's container.
func (n *fixture) requireRuns(t *testing.T, p pod) {
	t.Helper()
	exec, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: p.container, Cmd: []string{"/demo", "-v"}, Timeout: 60})
	require.NoError(t, err)
	require.Equal(t, "demo dev\n", string(exec.Stdout))
}

// waitExited waits until containerd knows that the container of a shim that was killed has ended.
func (n *fixture) waitExited(t testing.TB, p pod) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: p.container})
		return err == nil && status.Status.State == runtimeapi.ContainerState_CONTAINER_EXITED && status.Status.ExitCode != 0
	}, waitTimeout, 5*time.Millisecond)
}

// requireNothingLeftExcept waits until nothing is left but files with a prefix.
func (n *fixture) requireNothingLeftExcept(t *testing.T, prefix string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, left := range n.leftovers(t) {
			if !strings.HasPrefix(left, prefix) {
				return false
			}
		}
		return true
	}, waitTimeout, 5*time.Millisecond)
}

// runWith runs a Pod with a runtime.
func (n *fixture) runWith(t testing.TB, config *runtimeapi.PodSandboxConfig, data, runtime string) pod {
	handler := n.handler
	n.handler = runtime
	defer func() { n.handler = handler }()
	return n.run(t, config, data)
}

// killShim kills the shim of a sandbox.
func (n *fixture) killShim(t *testing.T, sandbox string) {
	process, err := os.FindProcess(n.shim(t, sandbox))
	require.NoError(t, err)
	require.NoError(t, process.Kill())
}

// shim returns the process of a sandbox's shim.
func (n *fixture) shim(t testing.TB, sandbox string) int {
	for _, file := range glob(t, "/proc/[0-9]*/cmdline") {
		command, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(command), "containerd-shim") || !strings.Contains(string(command), "\x00"+sandbox+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(file, "/")[2])
		require.NoError(t, err)
		return pid
	}
	t.Fatalf("no shim of sandbox %s", sandbox)
	return 0
}

// BenchmarkBurst creates, starts, stops and removes 30 Pods at once, with each runtime. cpu-ms is what each costs the machine, kernel
// included: this process, containerd, shims, runc, network plugins, and the containers themselves. It needs cgroup v1.
//
//	go test -tags integration -run '^$' -bench Burst -benchtime 5x ./up/containerd
func BenchmarkBurst(b *testing.B) {
	const count = 30
	for _, runtime := range containerd.Runtimes() {
		b.Run(runtime, func(b *testing.B) {
			account := newCPUAccount(b)
			n := newFixture(b)
			n.Runtime, n.ClusterMasquerade = runtime, true // the rule is not needed to reach Pods from the machine itself
			require.NoError(b, n.Write())
			n.start(b)
			n.importImages(b)
			data := volume(b)
			pods := make([]pod, count)
			var started, ended time.Duration
			before := account.used(b, n.cgroup)
			for b.Loop() {
				began := time.Now()
				var all errgroup.Group
				for i := range pods {
					all.Go(func() error {
						pods[i] = n.run(b, n.sandbox(fmt.Sprint("burst", i), b.TempDir(), false), data)
						return nil
					})
				}
				_ = all.Wait()
				started += time.Since(began)
				began = time.Now()
				for _, p := range pods {
					all.Go(func() error { n.end(b, p); return nil })
				}
				_ = all.Wait()
				ended += time.Since(began)
			}
			n.requireNothingLeft(b)
			pairs := float64(b.N * count)
			b.ReportMetric(float64((account.used(b, n.cgroup)-before).Microseconds())/1000/pairs, "cpu-ms/pod")
			b.ReportMetric(float64(started.Milliseconds())/float64(b.N), "start-ms")
			b.ReportMetric(float64(ended.Milliseconds())/float64(b.N), "end-ms")
			n.stop(b)
			n.clean(b)
		})
	}
}

// cpuAccount is a cgroup of version 1 that has this process and all that it starts.
type cpuAccount struct{ dir string }

const cpuacct = "/sys/fs/cgroup/cpuacct"

func newCPUAccount(b *testing.B) cpuAccount {
	account := cpuAccount{fmt.Sprintf("%s/berth-bench-%d", cpuacct, os.Getpid())}
	if _, err := os.Stat(cpuacct + "/cgroup.procs"); err != nil {
		b.Skip("the benchmark reads CPU time from cgroup v1")
	}
	require.NoError(b, os.MkdirAll(account.dir, 0o755))
	require.NoError(b, os.WriteFile(account.dir+"/cgroup.procs", fmt.Append(nil, os.Getpid()), 0))
	b.Cleanup(func() {
		processes, err := os.ReadFile(account.dir + "/cgroup.procs") // this one, and its helpers
		require.NoError(b, err)
		for _, pid := range strings.Fields(string(processes)) {
			_ = os.WriteFile(cpuacct+"/cgroup.procs", []byte(pid), 0)
		}
		require.NoError(b, os.Remove(account.dir))
	})
	return account
}

// used is the CPU time of the account and of the Pods' cgroup so far.
func (c cpuAccount) used(b *testing.B, pods string) (sum time.Duration) {
	for _, dir := range []string{c.dir, filepath.Join(cpuacct, pods)} {
		data, err := os.ReadFile(dir + "/cpuacct.usage")
		if os.IsNotExist(err) {
			continue // no Pod yet
		}
		require.NoError(b, err)
		nanoseconds, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		require.NoError(b, err)
		sum += time.Duration(nanoseconds)
	}
	return sum
}
