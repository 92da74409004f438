//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// loopDevices returns the loop devices of images in the cluster's data directory.
func (c *cluster) loopDevices() []string {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(c.t, err)
	var ours []string
	for _, file := range files {
		if image, err := os.ReadFile(file); err == nil && strings.Contains(string(image), c.dataDir) {
			ours = append(ours, file)
		}
	}
	return ours
}

const diskPod = `"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "disk"}}], "restartPolicy": "Never"`

// TestDisks runs Pods on a real disk of class berth-loop: provisioned, attached, staged and published over CSI.
func TestDisks(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "disk"}, "spec": {"storageClassName": "berth-loop",
		"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "32Mi"}}}}`)
	run := func(name, script string) string {
		t.Helper()
		c.apply(podManifest(name, shell(script, `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`), diskPod))
		pod := c.waitPod("name="+name, "finished", finished)
		log := c.mustRun("kubectl", "logs", name)
		require.Equal(t, corev1.PodSucceeded, pod.Status.Phase, log)
		c.mustRun("kubectl", "delete", "pod", name, "--timeout=2m")
		return log
	}
	run("writer", "grep ' /disk ext4 ' /proc/mounts && echo precious > /disk/file")
	require.Contains(t, run("full", "dd if=/dev/zero of=/disk/big bs=1M count=64 2>&1; rm /disk/big"), "No space left")

	c.apply(podManifest("user", shell("sleep 1000", `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`), diskPod))
	c.waitPod("name=user", "running", isReady)
	checkControllerMetrics(t, c)
	c.mustRun("kubectl", "delete", "pod", "user", "--grace-period=1", "--timeout=2m")
	checkDiskSize(t, c)

	c.stop()
	require.Empty(t, c.leftovers())
	require.Empty(t, c.loopDevices(), "no disk stays attached")
	c.up("--unsafe-no-fsync")
	require.Equal(t, "precious\n", run("reader", "cat /disk/file"))

	c.mustRun("kubectl", "delete", "pvc", "disk", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	require.Empty(t, c.loopDevices())
	images, err := filepath.Glob(filepath.Join(c.dataDir, "disks", "volumes", "*"))
	require.NoError(t, err)
	require.Empty(t, images, "the disk is deleted with the claim")
	out := c.mustRun("kubectl", "get", "volumeattachments")
	require.Contains(t, out, "No resources found")
	c.stop()
	require.Empty(t, c.leftovers())
}

// checkDiskSize checks that the scheduler refuses a disk that is larger than the capacity that csi.berth.dev publishes.
func checkDiskSize(t *testing.T, c *cluster) {
	t.Helper()
	list, err := c.client().StorageV1().CSIStorageCapacities("kube-system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	capacity := list.Items[0]
	require.Equal(t, "berth-loop", capacity.StorageClassName)
	require.Equal(t, map[string]string{"topology.csi.berth.dev/node": homeNode}, capacity.NodeTopology.MatchLabels)
	require.Equal(t, "CSIDriver csi.berth.dev", capacity.OwnerReferences[0].Kind+" "+capacity.OwnerReferences[0].Name)
	var disk unix.Statfs_t
	require.NoError(t, unix.Statfs(filepath.Join(c.dataDir, "disks"), &disk))
	require.Positive(t, capacity.Capacity.Value())
	require.LessOrEqual(t, capacity.Capacity.Value(), int64(disk.Blocks)*disk.Bsize)

	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "huge"}, "spec": {"storageClassName": "berth-loop",
		"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1000Ti"}}}}`)
	c.apply(podManifest("huge", shell("true", ""), strings.Replace(diskPod, `"disk"`, `"huge"`, 1)))
	c.waitPod("name=huge", "refused by the scheduler", func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse &&
				strings.Contains(condition.Message, "did not have enough free storage")
		})
	})
	claim, err := c.client().CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "huge", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, claim.Annotations, "volume.kubernetes.io/selected-node", "no node was selected")
	c.mustRun("kubectl", "delete", "pod", "huge", "--timeout=2m")
	c.mustRun("kubectl", "delete", "pvc", "huge", "--timeout=2m")
}
