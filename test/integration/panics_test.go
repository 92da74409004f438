//go:build integration && panics

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// wantPanics is how many panics are injected; the environment variable PANICS overrides it.
const wantPanics = 1000

// injected is what a recovered panic writes to the log.
var injected = regexp.MustCompile(`msg="Recovered from a panic[^\n]* site=(\S+)`)

// TestPanicsHarmNothingElse runs a berth that panics at random at all of its roots, except while it handles one Pod and its
// volume, under a load of Pods, claims, probes, exec and logs: that Pod, its volume and its connections notice nothing, the node's
// process never ends, and when the panics end everything works.
func TestPanicsHarmNothingElse(t *testing.T) {
	want := wantPanics
	if text := os.Getenv("PANICS"); text != "" {
		var err error
		want, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	c := newClusterWithServices(t)
	c.berth = filepath.Join(filepath.Dir(c.berth), "panics", "berth") // of make panics
	except := filepath.Join(t.TempDir(), "except")
	t.Setenv("BERTH_PANIC_RATE", "0.05")
	t.Setenv("BERTH_PANIC_EXCEPT", except)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(fmt.Sprintf(diskManifest, shell("/bin/busybox nc -ll -p 9000 -e /bin/busybox cat & while :; do date >> /data/beats; sleep 1; done",
		`"name": "witness", "volumeMounts": [{"name": "disk", "mountPath": "/data"}]`)))
	before := c.waitPod("name=writer", "ready", isReady)
	standing := c.dialEcho(t, before.Status.PodIP+":9000")
	claims, err := c.client().CoreV1().PersistentVolumeClaims(before.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	spared := []string{string(before.UID), before.Name}
	for _, claim := range claims.Items {
		spared = append(spared, claim.Name, claim.Spec.VolumeName, string(claim.UID))
	}
	pids := c.childPIDs(t)
	require.NoError(t, os.WriteFile(except, []byte(strings.Join(spared, "\n")), 0o600))

	log := filepath.Join(c.dataDir, "log", "berth.log")
	sites := make(map[string]int)
	began := time.Now()
	for round := 0; len(injected.FindAllString(string(readFile(t, log)), -1)) < want; round++ {
		require.Less(t, time.Since(began), 45*time.Minute, "too few panics: %v", sites)
		var running sync.WaitGroup
		for i := range 4 {
			running.Go(func() { c.burden(4*round + i) })
		}
		running.Wait()
		require.NoError(t, standing.exchange(fmt.Sprint("round ", round)))
		require.Equal(t, pids, c.childPIDs(t), "no process ends")
	}
	require.NoError(t, os.Remove(except))
	for _, match := range injected.FindAllStringSubmatch(string(readFile(t, log)), -1) {
		sites[match[1]]++
	}
	t.Logf("%d places panicked within %v: %v", len(sites), time.Since(began).Round(time.Second), sites)

	c.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "List", "items": [%s]}`, serverPod("after", "after", "exec /bin/busybox sleep 1000000")))
	c.waitPod("app=after", "ready", isReady)
	var left string
	require.NoError(t, c.poll(func(context.Context) bool { // no Pod waits for ever for a step that panicked
		left = c.mustRun("kubectl", "get", "pods", "-o", "name")
		return !strings.Contains(left, "victim")
	}), "Pods that were deleted stay: %s", left)
	after := c.waitPod("name=writer", "ready", isReady)
	require.Equal(t, before.UID, after.UID)
	require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID)
	require.Zero(t, after.Status.ContainerStatuses[0].RestartCount)
	require.NoError(t, standing.exchange("at the end"))
	require.Equal(t, pids, c.childPIDs(t))
	c.stop()
	require.Empty(t, c.leftovers())
}

// burden creates Pods with a claim, probes them, runs commands in them, reads their logs and deletes them. Each of them may fail.
func (c *cluster) burden(round int) {
	name := fmt.Sprintf("victim-%d", round)
	manifest := filepath.Join(c.t.(*testing.T).TempDir(), "victim.yaml")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "List", "items": [%s, {"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": {"name": %q}, "data": {"a": "b"}}]}`, serverPod(name, name, "exec /bin/busybox sleep 1000000"), name)
	require.NoError(c.t, os.WriteFile(manifest, []byte(text), 0o600))
	for _, command := range [][]string{
		{"apply", "-f", manifest}, {"wait", "--for=condition=Ready", "--timeout=5s", "pod/" + name}, {"exec", name, "--", "/bin/busybox", "true"},
		{"logs", name}, {"get", "--raw", "/api/v1/nodes/" + homeNode + "/proxy/stats/summary"},
		{"delete", "--wait=false", "--grace-period=1", "-f", manifest},
	} {
		_, _ = c.run(append([]string{"kubectl"}, command...)...) // the request whose step panics fails
	}
}
