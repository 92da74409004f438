//go:build integration

package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// lastRelease has the programs that hack/last-release.sh builds.
const lastRelease = "../../bin/last-release"

// upgradedPod counts its starts in a volume, and says so in its file system: a container that runs on has the same one.
const upgradedPod = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {storageClassName: berth-loop, accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {word: hidden}
---
apiVersion: v1
kind: Pod
metadata: {name: kept, labels: {app: kept}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - `

const upgradedVolumes = `
  volumes:
  - {name: disk, persistentVolumeClaim: {claimName: disk}}
  - {name: secret, secret: {secretName: secret}}
`

// TestUpgradeFromTheLastRelease runs the programs of the last release, of which a Pod with a disk, a Deployment and objects are left to this
// build, as a restart of the service does. This build is refused afterwards where a newer one has run the cluster, and changes nothing then.
func TestUpgradeFromTheLastRelease(t *testing.T) {
	old, err := filepath.Abs(filepath.Join(lastRelease, "berth"))
	require.NoError(t, err)
	if _, err := os.Stat(old); err != nil {
		t.Skip("run make last-release first, in a clone that has its commit")
	}
	setJob := standInForSystemd(t)
	c := newCluster(t)
	own := c.berth
	c.berth = old
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(upgradedPod + shell("echo start >> /disk/starts; "+sleepScript, `"name": "c", "volumeMounts": [{"name": "disk", "mountPath": "/disk"}, {"name": "secret", "mountPath": "/secret"}]`) +
		upgradedVolumes)
	before := c.waitPod("app=kept", "running", isReady)
	c.mustRun("kubectl", "create", "configmap", "settings", "--from-literal=of=old")

	c.berth = own
	require.NotEqual(t, versionOf(t, old), versionOf(t, own))
	require.Contains(t, c.mustRun("upgrade", "--check"), "upgrade     possible")
	c.berth = old
	setJob("restart")
	c.stop()
	c.berth = own
	c.up("--unsafe-no-fsync")
	after := c.waitPod("app=kept", "running", isReady)
	requireSameContainer(t, before, after)
	require.Equal(t, "start\n", c.mustRun("kubectl", "exec", "kept", "--", "/bin/busybox", "cat", "/disk/starts"))
	require.Equal(t, "hidden", c.mustRun("kubectl", "exec", "kept", "--", "/bin/busybox", "cat", "/secret/word"))
	require.Equal(t, "old", c.mustRun("kubectl", "get", "configmap", "settings", "-o", "jsonpath={.data.of}"))

	// What the old one made is deleted, and made again, by the new one.
	c.mustRun("kubectl", "delete", "pod", "kept")
	c.apply(upgradedPod + shell("echo start >> /disk/starts; "+sleepScript, `"name": "c", "volumeMounts": [{"name": "disk", "mountPath": "/disk"}]`) + upgradedVolumes)
	c.waitPod("app=kept", "running", isReady)
	require.Equal(t, "start\nstart\n", c.mustRun("kubectl", "exec", "kept", "--", "/bin/busybox", "cat", "/disk/starts"))

	setJob("stop")
	c.stop()
	refuseDowngrade(t, c)
	require.Empty(t, c.leftovers())
}

func versionOf(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.Command(program, "version").Output()
	require.NoError(t, err)
	return string(out)
}

func requireSameContainer(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	require.Equal(t, before.UID, after.UID)
	require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID)
	require.Zero(t, after.Status.ContainerStatuses[0].RestartCount)
	require.Equal(t, before.Status.PodIP, after.Status.PodIP)
}

// refuseDowngrade has a newer version run the cluster, after which this one may not.
func refuseDowngrade(t *testing.T, c *cluster) {
	t.Helper()
	state := filepath.Join(c.dataDir, "cluster.json")
	data, err := os.ReadFile(state)
	require.NoError(t, err)
	var saved map[string]any
	require.NoError(t, json.Unmarshal(data, &saved))
	require.NotContains(t, saved["berth"], "9.9")

	own, dir := c.berth, t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X github.com/berth-dev/berth/version.Berth=9.9.0", "-o", filepath.Join(dir, "berth"), "../../cmd/berth")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	c.berth = filepath.Join(dir, "berth")
	c.up("--unsafe-no-fsync", "--bin-dir", filepath.Dir(own))
	c.stop()
	c.berth = own
	newer, err := os.ReadFile(state)
	require.NoError(t, err)
	require.Contains(t, string(newer), `"9.9.0"`)

	out, err = exec.Command(c.berth, append([]string{"up"}, c.args...)...).CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, string(out), "was last run by berth 9.9.0")
	require.Contains(t, string(out), "a downgrade is not possible")
	require.Len(t, strings.Split(strings.TrimSpace(string(out)), "\n"), 1, "one line: %s", out)
	left, err := os.ReadFile(state)
	require.NoError(t, err)
	require.Equal(t, string(newer), string(left), "nothing is changed")
}
