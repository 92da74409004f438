//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const sidecarDriver = "sidecar.berth.dev"

// TestSidecar runs `berth csi-provisioner` as a process of its own beside a driver, as the driver's Pod would, with the
// permissions of its service account in examples/csi-provisioner.yaml and no more: a disk, its clone, the capacity, an
// expansion, and the deletion of both disks.
func TestSidecar(t *testing.T) {
	t.Parallel()
	attacher := thirdPartyBinary(t, "csi-attacher")
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	root, logs, socket := c.startDiskDriver(sidecarDriver)
	c.mustRun("kubectl", "apply", "-f", "../../examples/csi-provisioner.yaml")
	own := filepath.Join(logs, "kubeconfig")
	c.writeToken(own, strings.TrimSpace(c.mustRun("kubectl", "create", "token", "csi-provisioner", "-n", "kube-system")))
	log := filepath.Join(logs, "provisioner")
	c.startBeside(log, c.berth, "csi-provisioner", "--kubeconfig", own, "--csi-address", socket, "--enable-capacity", "--enable-resizer",
		"--leader-election", "--leader-election-namespace", "kube-system", "--extra-create-metadata", "-v", "4")
	c.startBeside(filepath.Join(logs, "attacher"), attacher, "--kubeconfig", filepath.Join(c.dataDir, "admin.kubeconfig"), "--csi-address", socket)
	c.class("sidecar", sidecarDriver)

	use := func(name, claim, source, script string) {
		t.Helper()
		c.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": %q}, "spec": {%s
			"storageClassName": "sidecar", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}}`, claim, source))
		c.apply(podManifest(name, shell(script+" && exec sleep 100000", `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`),
			fmt.Sprintf(`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": %q}}]`, claim)))
		c.waitPod("name="+name, "ready", isReady)
	}
	use("writer", "disk", "", "echo precious > /disk/file && sync")
	lease, err := c.client().CoordinationV1().Leases("kube-system").Get(t.Context(), sidecarDriver, metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, *lease.Spec.HolderIdentity)
	use("reader", "copy", `"dataSource": {"kind": "PersistentVolumeClaim", "name": "disk"},`, "cat /disk/file")
	c.waitLog("reader", "precious\n")
	var capacities *storagev1.CSIStorageCapacityList // berth up's own driver has one there too
	require.NoError(t, c.poll(func(ctx context.Context) bool {
		capacities, err = c.client().StorageV1().CSIStorageCapacities("kube-system").List(ctx, metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(capacities.Items, func(one storagev1.CSIStorageCapacity) bool {
			return one.StorageClassName == "sidecar" && !one.Capacity.IsZero()
		})
	}), "%v %v", capacities, err)

	c.mustRun("kubectl", "patch", "pvc", "copy", "-p", `{"spec": {"resources": {"requests": {"storage": "32Mi"}}}}`)
	_, err = waitClaim(t.Context(), c, "copy", func(claim *corev1.PersistentVolumeClaim) bool {
		stage := claim.Status.AllocatedResourceStatuses["storage"]
		return has("32Mi")(claim) || strings.HasPrefix(string(stage), "NodeResize") // an ext4 in use may have to wait
	})
	require.NoError(t, err)

	// All at once: the volumes are released while they are attached, and deleted as soon as they are detached.
	c.mustRun("kubectl", "delete", "pod,pvc", "--all", "--wait=false")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	left, err := filepath.Glob(filepath.Join(root, "volumes", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
	printed, err := os.ReadFile(log)
	require.NoError(t, err)
	require.NotContains(t, string(printed), "forbidden")
}
