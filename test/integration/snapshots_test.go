//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/provision/snapshot/crd"
)

const snapshotter = "github.com/kubernetes-csi/external-snapshotter"

// beside runs a program beside the cluster until it is stopped, or until the end of the test.
func beside(t *testing.T, program string, args ...string) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	out := newOutput()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	end = sync.OnceFunc(func() {
		stop()
		_ = cmd.Wait() // killed
	})
	t.Cleanup(func() {
		end()
		if t.Failed() {
			t.Logf("%s printed:\n%s", filepath.Base(program), out)
		}
	})
	return end
}

// claimOf returns a claim of class berth-loop with another object as data source.
func claimOf(name, source string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": %q}, "spec": {%s
		"storageClassName": "berth-loop", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "32Mi"}}}}`, name, source)
}

// snapshotRound takes a snapshot of a claim, creates a volume from it and one from the claim itself, and deletes all. class
// is a field of the VolumeSnapshot's spec, or empty.
func snapshotRound(t *testing.T, c *cluster, class string) {
	t.Helper()
	run := func(name, claim, script string) string {
		t.Helper()
		volumes := fmt.Sprintf(`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": %q}}], "restartPolicy": "Never"`, claim)
		c.apply(podManifest(name, shell(script, `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`), volumes))
		pod := c.waitPod("name="+name, "finished", finished)
		log := c.mustRun("kubectl", "logs", name)
		require.Equal(t, corev1.PodSucceeded, pod.Status.Phase, log)
		c.mustRun("kubectl", "delete", "pod", name, "--timeout=2m")
		return log
	}
	// The snapshot and the claim that is created from it come first: both wait for what they are of.
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "snap"},
		"spec": {` + class + `"source": {"persistentVolumeClaimName": "source"}}}`)
	c.apply(claimOf("source", ""))
	run("writer", "source", "echo old > /disk/file; sync")
	c.mustRun("kubectl", "wait", "volumesnapshot/snap", "--for=jsonpath={.status.readyToUse}=true", "--timeout=2m")
	c.mustRun("kubectl", "delete", "volumesnapshot", "snap", "--timeout=2m") // it was taken before the file was written, or after
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "snap"},
		"spec": {` + class + `"source": {"persistentVolumeClaimName": "source"}}}`)
	c.mustRun("kubectl", "wait", "volumesnapshot/snap", "--for=jsonpath={.status.readyToUse}=true", "--timeout=2m")
	run("changer", "source", "echo new > /disk/file; sync")

	c.apply(claimOf("restored", `"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"},`))
	require.Equal(t, "old\n", run("reader-of-restored", "restored", "cat /disk/file"))
	c.apply(claimOf("clone", `"dataSource": {"kind": "PersistentVolumeClaim", "name": "source"},`))
	require.Equal(t, "new\n", run("reader-of-clone", "clone", "cat /disk/file"))

	// A content that is kept is bound to a new VolumeSnapshot, which then deletes it.
	content := c.mustRun("kubectl", "get", "volumesnapshot", "snap", "-o", "jsonpath={.status.boundVolumeSnapshotContentName}")
	c.mustRun("kubectl", "patch", "volumesnapshotcontent", content, "--type=merge", "-p", `{"spec": {"deletionPolicy": "Retain"}}`)
	handle := c.mustRun("kubectl", "get", "volumesnapshotcontent", content, "-o", "jsonpath={.status.snapshotHandle}")
	c.mustRun("kubectl", "delete", "volumesnapshot", "snap", "--timeout=2m")
	c.mustRun("kubectl", "delete", "volumesnapshotcontent", content, "--timeout=2m")
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": "kept"},
		"spec": {"driver": "csi.berth.dev", "deletionPolicy": "Delete", "source": {"snapshotHandle": "` + handle + `"},
		"volumeSnapshotRef": {"name": "again", "namespace": "default"}}}`)
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "again"},
		"spec": {"source": {"volumeSnapshotContentName": "kept"}}}`)
	c.mustRun("kubectl", "wait", "volumesnapshot/again", "--for=jsonpath={.status.readyToUse}=true", "--timeout=2m")
	c.apply(claimOf("restored-again", `"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "again"},`))
	require.Equal(t, "old\n", run("reader-of-kept", "restored-again", "cat /disk/file"))

	c.mustRun("kubectl", "delete", "pvc", "--all", "--timeout=2m")
	c.mustRun("kubectl", "delete", "volumesnapshot", "again", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "volumesnapshotcontent", "--all", "--timeout=2m")
	for _, kind := range []string{"volumes", "snapshots"} {
		left, err := filepath.Glob(filepath.Join(c.dataDir, "disks", kind, "*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// TestSnapshots takes snapshots, also of a group, and restores them with nothing but berth up: the definitions of VolumeSnapshots and the
// default class are there, and are those of external-snapshotter. What cannot be is refused.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	published := filepath.Join(goTool(t, "csi", "list", "-m", "-f", "{{.Dir}}", snapshotter+"/client/v8"), "config", "crd")
	own, err := filepath.Glob("../../provision/snapshot/crd/" + crd.Version + "/*")
	require.NoError(t, err)
	require.Len(t, own, len(crd.Names()))
	for _, file := range own {
		want, err := os.ReadFile(filepath.Join(published, filepath.Base(file)))
		require.NoError(t, err)
		have, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(have), file)
	}
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	snapshotRound(t, c, "")
	groupSnapshotRound(t, c)
	impossibleStorage(t, c)
	c.stop()
	require.Empty(t, c.leftovers())
}

// TestSnapshotControllersOfOthers takes snapshots with each half of external-snapshotter and the other half of Berth.
func TestSnapshotControllersOfOthers(t *testing.T) {
	t.Parallel()
	controller, sidecar := thirdPartyBinary(t, "snapshot-controller"), thirdPartyBinary(t, "csi-snapshotter")
	c := newCluster(t)
	c.up("--unsafe-no-fsync", "--without", "kube-proxy,dns,csi-provisioner,snapshots")
	importShell(t, c)
	kubeconfig := "--kubeconfig=" + filepath.Join(c.dataDir, "admin.kubeconfig")
	socket := filepath.Join(c.runDir(), "csi.sock")
	// The scheduler places a Pod only where the driver's capacity is published.
	driver := []string{"controllers", kubeconfig, "--csi-driver", "csi.berth.dev=" + socket, "--csi-attacher=false", "--csi-capacity", "--leader-election=false"}

	// Both are there before the definitions are, and continue when these are created.
	endOwn := beside(t, c.berth, append(driver, "--csi-snapshotter=false", "--controllers", "snapshot")...)
	crds := filepath.Join(goTool(t, "csi", "list", "-m", "-f", "{{.Dir}}", snapshotter+"/client/v8"), "config", "crd")
	for _, kind := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		c.mustRun("kubectl", "apply", "-f", filepath.Join(crds, "snapshot.storage.k8s.io_"+kind+".yaml"))
	}
	for _, kind := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		c.mustRun("kubectl", "wait", "--for=condition=Established", "crd/"+kind+".snapshot.storage.k8s.io", "--timeout=1m")
	}
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "berth"},
		"driver": "csi.berth.dev", "deletionPolicy": "Delete"}`)
	endSidecar := beside(t, sidecar, kubeconfig, "--csi-address="+socket)
	snapshotRound(t, c, `"volumeSnapshotClassName": "berth", `)
	endSidecar()
	endOwn()

	endController := beside(t, controller, kubeconfig)
	endOwn = beside(t, c.berth, driver...)
	snapshotRound(t, c, `"volumeSnapshotClassName": "berth", `)
	endOwn()
	endController()
	c.stop()
	require.Empty(t, c.leftovers())
}
