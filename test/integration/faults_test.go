//go:build integration

package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/kubelet/agent"
)

// TestRuntimeFaults puts a proxy between a kubelet and its containerd that returns errors, loses responses, delays, drops,
// duplicates and reorders events, and cuts the connection, while Pods run. All Pods succeed nevertheless, and
// what no event has reported is counted as drift.
func TestRuntimeFaults(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	number := randomSeed(t)
	a := newTestNode(t, t.TempDir())
	proxy := newCRIProxy(t, a.runtime.Socket(), rand.New(rand.NewPCG(number, 3)))
	const audit, witnesses = 3 * time.Second, 3
	a.runOrphanCleanup(audit)
	a.start(c.admin(), func(config *agent.Config) {
		config.Runtime.Endpoint, config.Runtime.RelistPeriod = "unix://"+proxy.socket, audit
	})
	a.nodeReady(c.client())
	l := newLifecycleRunner(t, filepath.Join(c.dataDir, "admin.kubeconfig"), a.name)
	l.noExec = true
	check := l.startHealthy(t.Context(), witnesses)

	proxy.set(faults{refuse: 0.05, forget: 0.05, slow: 0.2, drop: 0.3, double: 0.2, late: 0.5})
	random := rand.New(rand.NewPCG(number, 4))
	done := make(chan error, 1)
	go func() { done <- l.run(t.Context(), number, *podCount/2, *concurrency) }()
	var err error
	for over := false; !over; {
		select {
		case err = <-done:
			over = true
		case <-time.After(time.Duration(random.IntN(6000)) * time.Millisecond): // a random moment is what this is about
			proxy.cut()
		}
		require.Empty(t, duplicateContainers(l.node))
	}
	t.Logf("done to the runtime's calls and events: %v; drift: %d", proxy.counts(), a.kubelet.MissedEvents())
	for _, what := range []string{"refused", "forgotten", "slow", "dropped", "doubled", "late", "cut"} {
		require.Positive(t, proxy.counts()[what], what)
	}
	require.NoError(t, ignoreInterruptedStarts(t, err, proxy.counts()["cut"]))
	require.NoError(t, check())

	// The counter works: with all events lost, only the audit can find the end of a container, and the next one counts it. A
	// connection cut shortly before, or an event that was late, causes a full read, which may find an end too.
	proxy.set(faults{all: 1})
	before := a.kubelet.MissedEvents()
	counted := func(context.Context) (bool, error) { return a.kubelet.MissedEvents() > before, nil }
	for i := range witnesses {
		name := fmt.Sprintf("healthy%d", i)
		l.killContainer(name)
		_, err = l.waitPod(t.Context(), name, "restarted", func(pod *corev1.Pod) bool {
			return pod != nil && isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1
		})
		require.NoError(t, err)
		if err = wait.PollUntilContextTimeout(t.Context(), audit/30, 5*audit, true, counted); err == nil {
			break
		}
	}
	require.NoError(t, err, "no event that was missed is counted")

	proxy.set(faults{})
	pods, err := c.client().CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	a.audit().requireClean(t, pods.Items)
}

// killContainer kills the first process of a Pod's container.
func (l *lifecycleRunner) killContainer(name string) {
	t := l.t
	t.Helper()
	for _, dir := range glob("/proc/[0-9]*") {
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.Contains(string(command), l.marker(name)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		return
	}
	t.Fatalf("no process of %s was found", name)
}
