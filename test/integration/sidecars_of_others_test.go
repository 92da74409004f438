//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSidecarsOfOthers has Kubernetes' own sidecars do all for csi.berth.dev that berth's parts do: external-provisioner, -attacher, -resizer
// and the controller and the sidecar of external-snapshotter. A disk is used, grows, is snapshotted, restored and cloned, and all of it
// goes again.
func TestSidecarsOfOthers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync", "--without", "kube-proxy,dns,csi-provisioner,csi-attacher,snapshots")
	importShell(t, c)
	kubeconfig := "--kubeconfig=" + filepath.Join(c.dataDir, "admin.kubeconfig")
	socket := "--csi-address=" + filepath.Join(c.runDir(), "csi.sock")
	crds := filepath.Join(goTool(t, "csi", "list", "-m", "-f", "{{.Dir}}", snapshotter+"/client/v8"), "config", "crd")
	for _, kind := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		c.mustRun("kubectl", "apply", "-f", filepath.Join(crds, "snapshot.storage.k8s.io_"+kind+".yaml"))
	}
	for _, kind := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		c.mustRun("kubectl", "wait", "--for=condition=Established", "crd/"+kind+".snapshot.storage.k8s.io", "--timeout=1m")
	}
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "berth"},
		"driver": "csi.berth.dev", "deletionPolicy": "Delete"}`)
	c.apply(`{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "of-others"}, "provisioner": "csi.berth.dev",
		"allowVolumeExpansion": true, "volumeBindingMode": "WaitForFirstConsumer", "parameters": {"csi.storage.k8s.io/fstype": "xfs"}}`)
	c.apply(`{"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "csi.berth.dev"},
		"spec": {"attachRequired": true, "fsGroupPolicy": "File", "storageCapacity": false}}`)
	for name, more := range map[string][]string{
		"csi-provisioner":     {socket, "--feature-gates=Topology=true"},
		"csi-attacher":        {socket},
		"csi-resizer":         {socket},
		"csi-snapshotter":     {socket},
		"snapshot-controller": nil,
	} {
		beside(t, thirdPartyBinary(t, name), append([]string{kubeconfig}, more...)...)
	}
	claim := func(name, size, source string) {
		c.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": %q}, "spec": {%s
			"storageClassName": "of-others", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": %q}}}}`, name, source, size))
	}
	claim("source", "320Mi", "")
	c.finish(t, "writer", "echo precious > /source/file && sync", "source")
	c.mustRun("kubectl", "patch", "pvc", "source", "-p", `{"spec": {"resources": {"requests": {"storage": "360Mi"}}}}`)
	c.apply(podManifest("user", shell("exec sleep 100000", `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`),
		`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "source"}}]`))
	_, err := waitClaim(t.Context(), c, "source", func(claim *corev1.PersistentVolumeClaim) bool { return has("360Mi")(claim) })
	require.NoError(t, err)
	c.apply(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "snap"},
		"spec": {"volumeSnapshotClassName": "berth", "source": {"persistentVolumeClaimName": "source"}}}`)
	c.mustRun("kubectl", "wait", "volumesnapshot/snap", "--for=jsonpath={.status.readyToUse}=true", "--timeout=2m")
	c.mustRun("kubectl", "delete", "pod", "user", "--timeout=2m")
	claim("clone", "360Mi", `"dataSource": {"kind": "PersistentVolumeClaim", "name": "source"},`)
	claim("restored", "360Mi", `"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"},`)
	require.Equal(t, "precious\nprecious\n", c.finish(t, "reader", "cat /restored/file /clone/file", "restored", "clone"))

	c.mustRun("kubectl", "delete", "pvc", "--all", "--timeout=2m")
	c.mustRun("kubectl", "delete", "volumesnapshot", "--all", "--timeout=2m")
	c.requireNoDisks(t)
	c.mustRun("kubectl", "wait", "--for=delete", "volumeattachments", "--all", "--timeout=2m")
}

const nodeDriver = "node.berth.dev"

// TestNodeDeployment runs a driver with a controller service on each of two nodes, and beside each the provisioner of its node alone. A
// claim gets its disk from the driver of the node that its Pod is scheduled to, or, if its class binds at once, of either of them; and only
// that one deletes it. The scheduler, with the feature gate StorageCapacityScoring, prefers the node whose driver has more space.
func TestNodeDeployment(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync", "--feature-gates", "StorageCapacityScoring=true")
	importShell(t, c)
	admin := filepath.Join(c.dataDir, "admin.kubeconfig")
	root, logs, socket := c.startDiskDriver(nodeDriver)
	roots := map[string]string{homeNode: root}
	provisioner := func(node, socket string) []string {
		return []string{"env", "NODE_NAME=" + node, c.berth, "csi-provisioner", "--kubeconfig", admin, "--csi-address", socket, "--node-deployment",
			"--node-deployment-base-delay", "1s", "--enable-capacity", "-v", "4"}
	}
	c.startBeside(filepath.Join(logs, "provisioner"), provisioner(homeNode, socket)...)
	m := newMachine(t, c, 1)
	roots[m.name] = filepath.Join(m.dir, "disks")
	mountSmallDisk(t, roots[m.name], "100M")
	t.Cleanup(func() { freeDisks(roots[m.name]) })
	second := filepath.Join(m.run, "csi.sock")
	m.start(func(m *machine) []string {
		return []string{c.berth, "csi-driver", "--name", nodeDriver, "--root", roots[m.name], "--node-id", m.name, "--endpoint", second,
			"--plugins-registry", m.registry()}
	})
	c.approve(m.name)
	c.waitNode(m.name, "ready", nodeReady)
	c.waitRegistered(m.name, nodeDriver)
	c.startBeside(filepath.Join(logs, "second"), provisioner(m.name, second)...)
	c.apply(`{"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "` + nodeDriver + `"},
		"spec": {"attachRequired": false, "storageCapacity": true}}`)
	c.apply(`{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "node"}, "provisioner": "` + nodeDriver + `",
		"volumeBindingMode": "WaitForFirstConsumer", "parameters": {"csi.storage.k8s.io/fstype": "ext4"}}`)
	c.apply(`{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "at-once"}, "provisioner": "` + nodeDriver + `",
		"volumeBindingMode": "Immediate", "parameters": {"csi.storage.k8s.io/fstype": "ext4"}}`)

	disks := func(node string) []string {
		found, err := filepath.Glob(filepath.Join(roots[node], "volumes", "*"))
		require.NoError(t, err)
		return found
	}
	for _, node := range []string{homeNode, m.name} {
		c.startWithDisk("on-"+node, fmt.Sprintf(`"nodeSelector": {"kubernetes.io/hostname": %q}, `, node))
		require.Len(t, disks(node), 1)
	}
	c.mustRun("kubectl", "delete", "pod,pvc", "on-"+m.name, "--timeout=2m")
	require.NoError(t, c.poll(func(context.Context) bool { return len(disks(m.name)) == 0 }))
	require.Len(t, disks(homeNode), 1)
	c.mustRun("kubectl", "delete", "pod,pvc", "on-"+homeNode, "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	require.Empty(t, disks(homeNode))

	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "at-once"}, "spec": {"storageClassName": "at-once",
		"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}}`)
	c.mustRun("kubectl", "wait", "pvc/at-once", "--for=jsonpath={.status.phase}=Bound", "--timeout=2m")
	require.Len(t, append(disks(homeNode), disks(m.name)...), 1, "one of the two nodes was selected")
	c.apply(podManifest("at-once", shell("echo here > /disk/file && exec sleep 100000", `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`),
		`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "at-once"}}]`))
	c.waitPod("name=at-once", "ready", isReady)
	c.mustRun("kubectl", "delete", "pod,pvc", "at-once", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	require.Empty(t, append(disks(homeNode), disks(m.name)...))

	c.checkCapacityScoring(t, func() (home, second int) { return len(disks(homeNode)), len(disks(m.name)) })
	for _, log := range []string{"provisioner", "second"} {
		printed, err := os.ReadFile(filepath.Join(logs, log))
		require.NoError(t, err)
		require.NotContains(t, string(printed), "forbidden")
	}
}

// startWithDisk starts a Pod that writes to a disk of class node, and waits until it is ready. more is further fields of its spec.
func (c *cluster) startWithDisk(name, more string) {
	c.t.Helper()
	c.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": %q}, "spec": {"storageClassName": "node",
		"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}}`, name))
	c.apply(podManifest(name, shell("echo here > /disk/file && exec sleep 100000", `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`),
		fmt.Sprintf(`%s"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": %q}}]`, more, name)))
	c.waitPod("name="+name, "ready", isReady)
}

// checkCapacityScoring starts Pods with a disk each one after the other. The scheduler spreads Pods over nodes, but by far the most space
// is on the cluster's own node, which has to get them all.
func (c *cluster) checkCapacityScoring(t *testing.T, disks func() (home, second int)) {
	t.Helper()
	require.NoError(t, c.poll(func(ctx context.Context) bool {
		published, err := c.client().StorageV1().CSIStorageCapacities("").List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		nodes := 0
		for _, one := range published.Items {
			if one.StorageClassName == "node" && !one.Capacity.IsZero() {
				nodes++
			}
		}
		return nodes == 2
	}))
	const pods = 6
	for i := range pods {
		c.startWithDisk(fmt.Sprint("scored-", i), "")
	}
	home, second := disks()
	require.Equal(t, [2]int{pods, 0}, [2]int{home, second}, "disks of the two nodes")
	c.mustRun("kubectl", "delete", "pod,pvc", "--all", "--grace-period=1", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
}
