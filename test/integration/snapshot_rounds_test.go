//go:build integration

package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// finish runs a Pod with these claims at /NAME until its script has ended, deletes it and returns what it printed.
func (c *cluster) finish(t *testing.T, name, script string, claims ...string) string {
	t.Helper()
	var mounts, volumes []string
	for _, claim := range claims {
		mounts = append(mounts, fmt.Sprintf(`{"name": %q, "mountPath": %q}`, claim, "/"+claim))
		volumes = append(volumes, fmt.Sprintf(`{"name": %q, "persistentVolumeClaim": {"claimName": %q}}`, claim, claim))
	}
	c.apply(podManifest(name, shell(script, `"volumeMounts": [`+strings.Join(mounts, ",")+`]`),
		`"restartPolicy": "Never", "volumes": [`+strings.Join(volumes, ",")+`]`))
	pod := c.waitPod("name="+name, "finished", finished)
	log := c.mustRun("kubectl", "logs", name)
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase, log)
	c.mustRun("kubectl", "delete", "pod", name, "--timeout=2m")
	return log
}

// requireNoDisks waits until no volume is left, and checks that the driver has none.
func (c *cluster) requireNoDisks(t *testing.T) {
	t.Helper()
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "volumesnapshotcontent", "--all", "--timeout=2m")
	for _, kind := range []string{"volumes", "snapshots"} {
		left, err := filepath.Glob(filepath.Join(c.dataDir, "disks", kind, "*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// groupSnapshotRound takes snapshots of two claims at one moment, restores both, and deletes the group.
func groupSnapshotRound(t *testing.T, c *cluster) {
	t.Helper()
	for _, name := range []string{"left", "right"} {
		c.apply(claimOf(name, ""))
		c.mustRun("kubectl", "label", "pvc", name, "group=both")
	}
	c.finish(t, "writer", "echo left > /left/file && echo right > /right/file && sync", "left", "right")
	c.apply(`{"apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshot", "metadata": {"name": "both"},
		"spec": {"source": {"selector": {"matchLabels": {"group": "both"}}}}}`)
	c.mustRun("kubectl", "wait", "volumegroupsnapshot/both", "--for=jsonpath={.status.readyToUse}=true", "--timeout=2m")
	c.mustRun("kubectl", "wait", "volumesnapshot", "--all", "--for=jsonpath={.status.readyToUse}=true", "--timeout=2m")
	members := strings.Fields(c.mustRun("kubectl", "get", "volumesnapshot", "-o", "jsonpath={.items[*].metadata.name}"))
	require.Len(t, members, 2)
	c.finish(t, "changer", "echo new > /left/file && echo new > /right/file && sync", "left", "right")

	for i, member := range members {
		c.apply(claimOf(fmt.Sprint("restored-", i),
			`"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "`+member+`"},`))
	}
	require.ElementsMatch(t, []string{"left", "right"},
		strings.Fields(c.finish(t, "reader", "cat /restored-0/file /restored-1/file", "restored-0", "restored-1")))

	c.mustRun("kubectl", "delete", "volumegroupsnapshot", "both", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "volumesnapshot", "--all", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "volumegroupsnapshotcontent", "--all", "--timeout=2m")
	c.mustRun("kubectl", "delete", "pvc", "--all", "--timeout=2m")
	c.requireNoDisks(t)
}

// impossibleStorage asks for what cannot be. Each is refused with its reason, and nothing is left of it.
func impossibleStorage(t *testing.T, c *cluster) {
	t.Helper()
	class := func(name, parameters string) {
		c.apply(fmt.Sprintf(`{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": %q},
			"provisioner": "csi.berth.dev", "volumeBindingMode": "Immediate", "parameters": {%s}}`, name, parameters))
	}
	claim := func(name, class, size, source string) {
		c.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": %q}, "spec": {%s "storageClassName": %q,
			"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": %q}}}}`, name, source, class, size))
	}
	class("at-once", "")
	class("half", `"overcommit": "0.5"`)
	class("unknown", `"colour": "blue"`)

	claim("half", "half", "16Mi", "")
	c.waitEvents("default", "half", "overcommit", "at least 1")
	claim("unknown", "unknown", "16Mi", "")
	c.waitEvents("default", "unknown", "colour")
	claim("immense", "at-once", "1Pi", "")
	c.waitEvents("default", "immense", "not enough disk space")
	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {"storageClassName": "at-once",
		"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "16Mi"}}}}`)
	c.waitEvents("default", "shared", "access_mode")

	claim("source", "at-once", "32Mi", "")
	c.mustRun("kubectl", "wait", "pvc/source", "--for=jsonpath={.status.phase}=Bound", "--timeout=2m")
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "snap"},
		"spec": {"source": {"persistentVolumeClaimName": "source"}}}`)
	c.mustRun("kubectl", "wait", "volumesnapshot/snap", "--for=jsonpath={.status.readyToUse}=true", "--timeout=2m")
	claim("smaller", "at-once", "16Mi", `"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"},`)
	c.waitEvents("default", "smaller", "16Mi is less than its size, 32Mi")
	claim("smaller-clone", "at-once", "16Mi", `"dataSource": {"kind": "PersistentVolumeClaim", "name": "source"},`)
	c.waitEvents("default", "smaller-clone", "16Mi is less than the 32Mi of the source")

	// A Pod keeps the claim that is being deleted.
	c.apply(podManifest("user", shell("exec sleep 100000", `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`),
		`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "source"}}]`))
	c.waitPod("name=user", "ready", isReady)
	c.mustRun("kubectl", "delete", "pvc", "source", "--wait=false")
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "late"},
		"spec": {"source": {"persistentVolumeClaimName": "source"}}}`)
	c.mustRun("kubectl", "wait", "volumesnapshot/late", "--for=jsonpath={.status.error.message}", "--timeout=2m")
	require.Contains(t, c.mustRun("kubectl", "get", "volumesnapshot", "late", "-o", "jsonpath={.status.error.message}"), "is being deleted")

	c.mustRun("kubectl", "delete", "pod", "user", "--timeout=2m")
	c.mustRun("kubectl", "delete", "pvc", "--all", "--timeout=2m") // a snapshot stays as long as a claim waits to be restored from it
	c.mustRun("kubectl", "delete", "volumesnapshot", "--all", "--timeout=2m")
	c.requireNoDisks(t)
}
