//go:build integration

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// writer counts in two volumes, one after the other: the first is never behind, and at most one ahead. At its start it prints how far they are.
const writer = `n=$(/bin/busybox cat /disk/count 2>/dev/null || echo 0); m=$(/bin/busybox cat /local/count 2>/dev/null || echo 0)
echo "found disk=$n local=$m"
while :; do
  n=$((n+1)); echo $n > /disk/new; /bin/busybox mv /disk/new /disk/count; echo $n > /local/new; /bin/busybox mv /local/new /local/count
done`

// claimsOfBothClasses are two claims of 32 MiB: disk of a loop device, local of a directory.
const claimsOfBothClasses = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {storageClassName: berth-loop, accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: local}
spec: {storageClassName: berth-local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}}
---
`

const savedManifest = claimsOfBothClasses + `apiVersion: v1
kind: ConfigMap
metadata: {name: config}
data: {who: original}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {word: hidden}
---
apiVersion: v1
kind: Pod
metadata: {name: writer, labels: {app: writer}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - %s
  volumes:
  - {name: disk, persistentVolumeClaim: {claimName: disk}}
  - {name: local, persistentVolumeClaim: {claimName: local}}
`

// TestSavedCluster saves a cluster that runs, and starts two copies of it beside it.
func TestSavedCluster(t *testing.T) {
	origin := newIsolatedCluster(t)
	origin.up("--unsafe-no-fsync")
	importShell(t, origin)
	origin.apply(fmt.Sprintf(savedManifest, shell(writer, `"name": "main", "volumeMounts": [{"name": "disk", "mountPath": "/disk"}, {"name": "local", "mountPath": "/local"}]`)))
	origin.waitPod("app=writer", "ready", isReady)
	uid := origin.mustRun("kubectl", "get", "pod", "writer", "-o", "jsonpath={.metadata.uid}")

	store := filepath.Join(shortDir(t), "saved")
	out := origin.mustRun("snapshot", "save", "base", "--snapshots", store)
	t.Log(out)
	require.Contains(t, out, "it stood still for")
	goesOn(t, origin)
	killedSaves(t, origin, store)
	out, err := origin.run("snapshot", "save", "base", "--snapshots", store)
	require.Error(t, err)
	require.Contains(t, out, "exists")
	require.Contains(t, origin.mustRun("snapshot", "list", "--snapshots", store), "base")

	var forks []*cluster
	for range 2 {
		fork := newIsolatedCluster(t)
		// Its networks and its node's name are those of the saved cluster.
		fork.args = []string{"--data-dir", fork.dataDir, "--from", "base", "--snapshots", store, "--isolated"}
		fork.up("--unsafe-no-fsync")
		fork.args = []string{"--data-dir", fork.dataDir}
		forks = append(forks, fork)
	}
	seen := map[string]bool{origin.mustRun("kubectl", "config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}"): true}
	for i, fork := range forks {
		pod := fork.waitPod("app=writer", "running again", func(pod *corev1.Pod) bool {
			return isReady(pod) && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].RestartCount > 0
		})
		require.Equal(t, uid, string(pod.UID))
		hasDataOfOneMoment(t, fork)
		goesOn(t, fork)
		require.Equal(t, "hidden", decodeSecret(t, fork))
		fork.mustRun("kubectl", "patch", "configmap", "config", "-p", fmt.Sprintf(`{"data": {"who": "fork %d"}}`, i))
		authority := fork.mustRun("kubectl", "config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}")
		require.False(t, seen[authority], "each has an authority of its own")
		seen[authority] = true
		volume := fork.mustRun("kubectl", "get", "pv", "-o", "jsonpath={.items[*].spec.local.path}")
		require.Contains(t, volume, fork.dataDir, "its volumes are its own")
	}
	_, err = asOther(t, origin, forks[0])
	require.Error(t, err, "a certificate of one does not open the other")
	for i, fork := range forks {
		require.Equal(t, fmt.Sprintf("fork %d", i), fork.mustRun("kubectl", "get", "configmap", "config", "-o", "jsonpath={.data.who}"))
		fork.stop()
	}
	require.Equal(t, "original", origin.mustRun("kubectl", "get", "configmap", "config", "-o", "jsonpath={.data.who}"))
	goesOn(t, origin)

	out, err = origin.run("snapshot", "restore", "base", "--snapshots", store, "--replace")
	require.Error(t, err)
	require.Contains(t, out, "already running")
	origin.mustRun("kubectl", "delete", "configmap", "config")
	kubeconfig, err := os.ReadFile(filepath.Join(origin.dataDir, "admin.kubeconfig"))
	require.NoError(t, err)
	origin.stop()
	origin.mustRun("snapshot", "restore", "base", "--snapshots", store, "--replace")
	origin.up("--unsafe-no-fsync")
	require.Equal(t, "original", origin.mustRun("kubectl", "get", "configmap", "config", "-o", "jsonpath={.data.who}"))
	again, err := os.ReadFile(filepath.Join(origin.dataDir, "admin.kubeconfig"))
	require.NoError(t, err)
	require.Equal(t, string(kubeconfig), string(again), "a restored cluster has its certificates")
	origin.stop()
	require.Contains(t, origin.mustRun("snapshot", "delete", "base", "--snapshots", store), "Deleted base")
}

// goesOn waits until the writer has written more.
func goesOn(t *testing.T, c *cluster) {
	t.Helper()
	count := func() string {
		return c.mustRun("kubectl", "exec", "writer", "--", "/bin/busybox", "cat", "/local/count")
	}
	before := count()
	require.Eventually(t, func() bool { return count() != before }, waitTimeout, 1)
}

var foundLine = regexp.MustCompile(`found disk=(\d+) local=(\d+)`)

// hasDataOfOneMoment compares what the writer found in its two volumes.
func hasDataOfOneMoment(t *testing.T, c *cluster) {
	t.Helper()
	out := c.mustRun("kubectl", "logs", "writer")
	match := foundLine.FindStringSubmatch(out)
	require.NotNil(t, match, "%s", out)
	disk, err := strconv.Atoi(match[1])
	require.NoError(t, err)
	local, err := strconv.Atoi(match[2])
	require.NoError(t, err)
	require.Positive(t, local)
	require.Contains(t, []int{0, 1}, disk-local, "disk %d, local %d", disk, local)
}

func decodeSecret(t *testing.T, c *cluster) string {
	t.Helper()
	return c.mustRun("kubectl", "get", "secret", "secret", "-o", `go-template={{.data.word | base64decode}}`)
}

// asOther lists the Pods of a cluster with the certificate of another one.
func asOther(t *testing.T, c, other *cluster) (string, error) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(c.dataDir, "admin.kubeconfig"))
	require.NoError(t, err)
	strange, err := clientcmd.LoadFromFile(filepath.Join(other.dataDir, "admin.kubeconfig"))
	require.NoError(t, err)
	for name := range config.AuthInfos {
		for _, user := range strange.AuthInfos {
			config.AuthInfos[name] = user
		}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	return c.run("kubectl", "--kubeconfig", path, "get", "pods")
}

// killedSaves kills `berth snapshot save` at different moments: the cluster goes on.
func killedSaves(t *testing.T, c *cluster, store string) {
	t.Helper()
	for _, delay := range []time.Duration{5, 20, 60, 150} {
		cmd := exec.Command(c.berth, "--data-dir", c.dataDir, "snapshot", "save", "killed", "--snapshots", store)
		require.NoError(t, cmd.Start())
		time.Sleep(delay * time.Millisecond)
		_ = cmd.Process.Kill() // it may have finished
		_ = cmd.Wait()
		goesOn(t, c)
	}
	_, _ = c.run("snapshot", "delete", "killed", "--snapshots", store) // if one was complete
}
