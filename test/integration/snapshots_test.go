//go:build integration

package integration

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
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

// TestSnapshots creates a volume from a snapshot and one from another volume. Kubernetes' own controller and sidecar take
// the snapshot; berth up provisions the volumes, with its own permissions.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	controller, sidecar := thirdPartyBinary(t, "snapshot-controller"), thirdPartyBinary(t, "csi-snapshotter")
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	crds := filepath.Join(goTool(t, "csi", "list", "-m", "-f", "{{.Dir}}", snapshotter+"/client/v8"), "config", "crd")
	for _, kind := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		c.mustRun("kubectl", "apply", "-f", filepath.Join(crds, "snapshot.storage.k8s.io_"+kind+".yaml"))
	}
	kubeconfig := "--kubeconfig=" + filepath.Join(c.dataDir, "admin.kubeconfig")
	endController := beside(t, controller, kubeconfig)
	endSidecar := beside(t, sidecar, kubeconfig, "--csi-address="+filepath.Join(c.runDir(), "csi.sock"))

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
	c.apply(claimOf("source", ""))
	run("writer", "source", "echo old > /disk/file; sync")
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "berth"},
		"driver": "csi.berth.dev", "deletionPolicy": "Delete"}`)
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "snap"},
		"spec": {"volumeSnapshotClassName": "berth", "source": {"persistentVolumeClaimName": "source"}}}`)
	c.mustRun("kubectl", "wait", "volumesnapshot/snap", "--for=jsonpath={.status.readyToUse}=true", "--timeout=2m")
	run("changer", "source", "echo new > /disk/file; sync")

	c.apply(claimOf("restored", `"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"},`))
	require.Equal(t, "old\n", run("reader-of-restored", "restored", "cat /disk/file"))
	c.apply(claimOf("clone", `"dataSource": {"kind": "PersistentVolumeClaim", "name": "source"},`))
	require.Equal(t, "new\n", run("reader-of-clone", "clone", "cat /disk/file"))

	c.mustRun("kubectl", "delete", "pvc", "--all", "--timeout=2m")
	c.mustRun("kubectl", "delete", "volumesnapshot", "snap", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "volumesnapshotcontent", "--all", "--timeout=2m")
	for _, kind := range []string{"volumes", "snapshots"} {
		left, err := filepath.Glob(filepath.Join(c.dataDir, "disks", kind, "*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	endSidecar()
	endController()
	c.stop()
	require.Empty(t, c.leftovers())
}
