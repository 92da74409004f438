//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDemoKeepsItsDataWhateverHappens runs the demo, whose count survives the deletion of its Pod, a clean restart, kill -9
// of berth alone, and kill -9 of everything. At the end the directory is deleted with its claim, and nothing is left on the
// machine.
func TestDemoKeepsItsDataWhateverHappens(t *testing.T) {
	c := newCluster(t)
	c.up("--demo")
	require.Regexp(t, pageLine, c.out.String())
	require.Contains(t, c.out.String(), "Sandbox", "the start is printed as a waterfall")
	pod := c.waitPod("app=demo", "ready", isReady)
	count := visit(t, pod.Status.PodIP)
	require.Equal(t, count+1, visit(t, pod.Status.PodIP), "every visit is counted once")
	count++

	// Each step continues with the cluster of the previous one.
	step := func(name string, run func(t *testing.T)) {
		if !t.Run(name, run) {
			t.FailNow()
		}
	}
	step("kubectl logs and exec", func(t *testing.T) {
		require.NoError(t, c.poll(func(context.Context) bool { return c.mustRun("kubectl", "logs", pod.Name) != "" }))
		require.Contains(t, c.mustRun("kubectl", "exec", pod.Name, "--", "/demo", "-v"), "demo")
	})
	step("explain", func(t *testing.T) { checkExplain(t, c, pod.Name) })
	step("the Pod is deleted", func(t *testing.T) {
		c.mustRun("kubectl", "delete", "pod", pod.Name)
		next := c.waitPod("app=demo", "a new one and ready", func(p *corev1.Pod) bool { return p.UID != pod.UID && isReady(p) })
		count = moreVisits(t, next, count)
		pod = next
	})
	step("a clean restart", func(t *testing.T) {
		c.stop()
		require.Empty(t, c.leftovers(), "after Ctrl-C nothing is left but the data directory")
		c.up()
		count = moreVisits(t, c.waitSame(pod), count)
	})
	step("kill -9 of berth alone", func(t *testing.T) {
		started := c.waitSame(pod).Status.ContainerStatuses[0]
		c.killBerth()
		c.up()
		again := c.waitSame(pod)
		require.Equal(t, started.RestartCount, again.Status.ContainerStatuses[0].RestartCount, "a healthy container is not restarted")
		require.Equal(t, started.ContainerID, again.Status.ContainerStatuses[0].ContainerID)
		count = moreVisits(t, again, count)
	})
	step("kill -9 of everything", func(t *testing.T) {
		c.killAll()
		c.up()
		count = moreVisits(t, c.waitSame(pod), count)
	})
	step("the claim is deleted", func(t *testing.T) {
		require.Len(t, c.volumes(), 1)
		c.mustRun("kubectl", "delete", "deployment/demo", "pvc/demo", "--wait=true", "--timeout=2m")
		c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
		require.Empty(t, c.volumes(), "the volume's directory is deleted with the claim")
	})
	c.stop()
	require.Empty(t, c.leftovers())
}

// volumes returns the directories of the cluster's volumes, of either class: the machine determines which is the default.
func (c *cluster) volumes() []string {
	c.t.Helper()
	var found []string
	for _, pattern := range []string{"volumes/*", "disks/volumes/*"} {
		dirs, err := filepath.Glob(filepath.Join(c.dataDir, pattern))
		require.NoError(c.t, err)
		found = append(found, dirs...)
	}
	return found
}

// waitSame waits until the same Pod is ready: a restart of the cluster must not create another one.
func (c *cluster) waitSame(pod *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	// The Pod's old Ready condition is still in the API right after a restart, so wait for a container that the
	// runtime really has: only then the page responds.
	return c.waitPod("app=demo", "the same Pod and ready", func(p *corev1.Pod) bool {
		return p.UID == pod.UID && isReady(p) && serves(c.t, p)
	})
}

// moreVisits visits the page and requires that the count continues.
func moreVisits(t testing.TB, pod *corev1.Pod, before int) int {
	t.Helper()
	after := visit(t, pod.Status.PodIP)
	require.Equal(t, before+1, after, "the count continues")
	return after
}

func checkExplain(t *testing.T, c *cluster, name string) {
	var answer struct {
		APIVersion, Kind, State, Verdict string
		Stages                           []struct {
			Name       string
			DurationMs float64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(c.mustRun("explain", "pod", name, "-o", "json")), &answer))
	require.Equal(t, "Explanation", answer.Kind)
	require.Equal(t, "Ready", answer.State)
	seen := make(map[string]bool)
	for _, stage := range answer.Stages {
		seen[stage.Name] = true
	}
	for _, stage := range []string{"Accepted", "Provisioning", "Bound", "Scheduled", "SeenByKubelet", "MountVolume", "Sandbox",
		"Image", "CreateContainer", "StartContainer", "Ready"} {
		require.True(t, seen[stage], "stage %s is missing from %v", stage, answer.Stages)
	}
	text := c.mustRun("why", "pod/"+name)
	require.Contains(t, text, "running and ready")

	out, err := c.run("explain", "pod", "no-such-pod")
	require.Error(t, err)
	require.Contains(t, out, "not found")
}

// TestTwoClusters runs two clusters at the same time; they do not affect each other.
func TestTwoClusters(t *testing.T) {
	first, second := newCluster(t), newCluster(t)
	first.up("--demo")
	second.up("--demo")
	firstPod := first.waitPod("app=demo", "ready", isReady)
	secondPod := second.waitPod("app=demo", "ready", isReady)
	count := visit(t, firstPod.Status.PodIP)
	visit(t, secondPod.Status.PodIP)
	visit(t, secondPod.Status.PodIP)
	require.Equal(t, count+1, visit(t, firstPod.Status.PodIP), "each has its own count")

	first.killAll()
	visit(t, secondPod.Status.PodIP)
	first.up()
	first.stop()
	require.Empty(t, first.leftovers())
	visit(t, secondPod.Status.PodIP)
	nodes, err := second.client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, nodes.Items, 1)

	second.stop()
	require.Empty(t, second.leftovers())
}

// serves reports whether the demo responds.
func serves(t testing.TB, pod *corev1.Pod) bool {
	return reachable(t, pod.Status.PodIP, time.Second)
}
