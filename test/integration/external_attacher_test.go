//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const externalAttacherDriver = "external.berth.dev"

// thirdPartyBinary is the path of a program of another project that `make thirdparty` builds.
func thirdPartyBinary(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../bin/thirdparty", name))
	require.NoError(t, err)
	_, err = os.Stat(path)
	require.NoError(t, err, "run make thirdparty first")
	return path
}

// TestExternalAttacher runs Kubernetes' own external-attacher in place of ours: a Pod gets its disk and releases it.
func TestExternalAttacher(t *testing.T) {
	t.Parallel()
	attacher := thirdPartyBinary(t, "csi-attacher")
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	root, logs, socket := c.startDiskDriver(externalAttacherDriver)
	admin := filepath.Join(c.dataDir, "admin.kubeconfig")
	c.startBeside(filepath.Join(logs, "controllers"), c.berth, "controllers", "--kubeconfig", admin, "--leader-election=false",
		"--csi-driver", externalAttacherDriver+"="+socket, "--csi-attacher=false")
	c.startBeside(filepath.Join(logs, "attacher"), attacher, "--kubeconfig", admin, "--csi-address", socket, "--v=3")
	c.class("external", externalAttacherDriver)

	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "disk"}, "spec": {"storageClassName": "external",
		"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}}`)
	run1 := func(name, script string) {
		t.Helper()
		c.apply(podManifest(name, shell(script, `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`), `"volumes": [
			{"name": "v", "persistentVolumeClaim": {"claimName": "disk"}}]`))
		c.waitPod("name="+name, "ready", isReady)
	}
	run1("writer", "echo precious > /disk/file && sync && exec sleep 100000")
	va := c.onlyAttachment(t)
	require.Equal(t, externalAttacherDriver, va.Spec.Attacher)
	require.True(t, va.Status.Attached)
	require.Equal(t, []string{"external-attacher/external-berth-dev"}, va.Finalizers)
	require.True(t, slices.ContainsFunc(va.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == "csi-attacher" && f.Subresource == "status"
	}), "the external-attacher must have written the status: %v", va.ManagedFields)

	c.mustRun("kubectl", "delete", "pod", "writer", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "volumeattachment", va.Name, "--timeout=2m")
	run1("reader", "cat /disk/file && exec sleep 100000")
	c.waitLog("reader", "precious\n")
	require.NotEqual(t, va.UID, c.onlyAttachment(t).UID, "the Pod has an attachment of its own")
	c.mustRun("kubectl", "delete", "pod", "reader", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "volumeattachments", "--all", "--timeout=2m")
	c.mustRun("kubectl", "delete", "pvc", "disk", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	left, err := filepath.Glob(filepath.Join(root, "volumes", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// startDiskDriver runs a driver of disks beside the cluster, registered on its node, and returns the directory of its disks,
// a directory for logs, and its socket.
func (c *cluster) startDiskDriver(driver string) (root, logs, socket string) {
	c.t.Helper()
	run := runDir(c.t, "berth-j")
	root, logs, socket = filepath.Join(c.t.TempDir(), "disks"), c.t.TempDir(), filepath.Join(run, "csi.sock")
	c.t.Cleanup(func() { freeDisks(root) })
	c.startBeside(filepath.Join(logs, "driver"), c.berth, "csi-driver", "--name", driver, "--root", root, "--node-id", homeNode,
		"--endpoint", socket, "--plugins-registry", filepath.Join(c.dataDir, "kubelet", "plugins_registry"))
	c.waitRegistered(homeNode, driver)
	return root, logs, socket
}

// onlyAttachment returns the only VolumeAttachment.
func (c *cluster) onlyAttachment(t *testing.T) *storagev1.VolumeAttachment {
	t.Helper()
	list, err := c.client().StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	return &list.Items[0]
}
