//go:build integration

package integration

import (
	"errors"
	"flag"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	podCount    = flag.Int("pods", 24, "how many Pods TestKills runs; TestRuntimeFaults runs half as many")
	concurrency = flag.Int("at-once", 8, "how many of these Pods run at the same time")
	killPause   = flag.Duration("pause", 4*time.Second, "the longest pause between two kills of TestKills")
	seedFlag    = flag.Uint64("seed", 0, "random seed; 0 means a random one")
)

func randomSeed(t testing.TB) uint64 {
	number := *seedFlag
	if number == 0 {
		number = rand.Uint64()
	}
	t.Logf("-seed %d", number)
	return number
}

// TestKills kills berth with its kubelet, containerd, the control plane and the shims of some Pods at random moments while Pods are
// created, run, execute commands, crash, end and are deleted. The result must be the same as without kills, Pods whose shim was killed
// run again, and the node must keep nothing of a Pod that is gone.
func TestKills(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	l := newLifecycleRunner(t, c.dataDir+"/admin.kubeconfig", homeNode)
	check := l.startHealthy(t.Context(), 3)
	victims := l.startShimVictims(2)

	number := randomSeed(t)
	random := rand.New(rand.NewPCG(number, 2))
	done := make(chan error, 1)
	go func() { done <- l.run(t.Context(), number, *podCount, *concurrency) }()
	kills := map[string]int{}
	var err error
	for over := false; !over; {
		pause := time.Duration(random.Int64N(int64(*killPause)))
		select {
		case err = <-done:
			over = true
		case <-time.After(pause): // a random moment is what this is about
			kills[killRandom(c, victims, random)]++
		}
		require.Empty(t, duplicateContainers(l.node))
	}
	t.Logf("killed: %v", kills)
	require.NoError(t, ignoreInterruptedStarts(t, err, kills["containerd"]+kills["berth"]))
	require.NoError(t, check())
	victims.requireRunning()
	pods, err := c.client().CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	c.audit().requireClean(t, pods.Items)
	c.stop()
	require.Empty(t, c.leftovers())
}

// ignoreInterruptedStarts removes from err as many containers with one start too many as starts can have been interrupted:
// a container that containerd was starting has run for a moment, but if the call is interrupted, or containerd dies before
// it records the start, containerd kills the container and reports that it never ran.
func ignoreInterruptedStarts(t testing.TB, err error, cuts int) error {
	if err == nil {
		return nil
	}
	var left []error
	for _, line := range strings.Split(err.Error(), "\n") {
		if strings.Contains(line, errTooManyStarts.Error()) && cuts > 0 {
			cuts--
			t.Logf("interrupted start: %s", line)
			continue
		}
		left = append(left, errors.New(line))
	}
	return errors.Join(left...)
}

// killRandom kills one of the cluster's processes, or the shim of one of the victims, and starts berth again if it was that.
func killRandom(c *cluster, victims *shimVictims, random *rand.Rand) string {
	c.t.Helper()
	names := []string{"berth", "berth", "berth", "containerd", "containerd", "control plane", "shim", "shim"}
	name := names[random.IntN(len(names))]
	if name == "shim" {
		return victims.kill(random)
	}
	if name == "berth" {
		c.killBerth()
		c.up("--unsafe-no-fsync")
		return name
	}
	binary := map[string]string{"containerd": "containerd", "control plane": "berth-controlplane"}[name]
	for pid, command := range c.processes() {
		if isProgram(command, binary) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be starting or ending
		}
	}
	return name
}
