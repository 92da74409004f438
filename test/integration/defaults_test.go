//go:build integration

package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestNodeDefaults runs a static Pod and one of the API in a cluster whose containers get the runtime's seccomp profile.
func TestNodeDefaults(t *testing.T) {
	c := newCluster(t)
	dir := t.TempDir()
	c.up("--unsafe-no-fsync", "--pod-manifest-path", dir)
	importShell(t, c)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "static.yaml"), []byte(staticManifest("static", "x")), 0o600))
	c.apply(podManifest("filtered", shell("grep Seccomp: /proc/self/status; "+sleepScript, ""), ""))
	c.apply(podManifest("unfiltered", shell("grep Seccomp: /proc/self/status; "+sleepScript,
		`"securityContext": {"seccompProfile": {"type": "Unconfined"}}`), ""))
	c.waitPod("name=filtered", "ready", isReady)
	c.waitPod("name=unfiltered", "ready", isReady)
	shown := c.waitPod("name=static", "ready", isReady)
	c.waitLog("filtered", "Seccomp:\t2\n")
	c.waitLog("unfiltered", "Seccomp:\t0\n")

	var list corev1.PodList
	require.NoError(t, json.Unmarshal([]byte(c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/pods")), &list))
	byName := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		byName[pod.Name] = pod
	}
	require.Len(t, byName, len(list.Items), "each once")
	static := byName[shown.Name]
	require.NotEqual(t, shown.UID, static.UID)
	require.NotContains(t, static.Annotations, corev1.MirrorPodAnnotationKey)
	require.Equal(t, "file", static.Annotations["kubernetes.io/config.source"])
	require.Equal(t, shown.Status.ContainerStatuses[0].ContainerID, static.Status.ContainerStatuses[0].ContainerID)
	require.True(t, isReady(&static))

	require.NoError(t, os.Remove(filepath.Join(dir, "static.yaml")))
	c.mustRun("kubectl", "delete", "pods", "filtered", "unfiltered", "--wait=true", "--timeout=2m")
	c.stop()
	require.Empty(t, c.leftovers())
}
