//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	csifake "github.com/berth-dev/berth/volume/csi/fake"

	"github.com/berth-dev/berth/explain"
)

// The CSI drivers of these tests: one whose calls fail or hang as planned, one whose volumes have to be attached, and
// one that nobody runs.
const (
	plannedDriver  = "planned.example"
	attachedDriver = "attached.example"
	absentDriver   = "absent.example"
)

// csiVolume is a volume of a CSI driver and the claim that it is bound to, both of this name.
func csiVolume(driver, name string) string {
	return `{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "` + name + `"}, "spec": {
		"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
		"claimRef": {"namespace": "default", "name": "` + name + `"}, "csi": {"driver": "` + driver + `", "volumeHandle": "` + name + `"}}}
---
` + claimManifest(name, `"storageClassName": "", "volumeName": "`+name+`"`)
}

func driverObject(name, attach string) string {
	return `{"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "` + name + `"}, "spec": {"attachRequired": ` + attach + `}}`
}

// onNode is a Pod on the claim of its name that no scheduler has to place.
func onNode(name, node string) string {
	return podManifest(name, shell("sleep 1000", `"volumeMounts": [{"name": "v", "mountPath": "/v"}]`),
		`"nodeName": "`+node+`", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "`+name+`"}}]`)
}

// serveDriver runs a driver that the cluster's kubelet gets to know.
func serveDriver(t *testing.T, c *cluster, name string) *csifake.Driver {
	t.Helper()
	driver := csifake.New(csifake.Config{Name: name, NodeID: homeNode, Dir: t.TempDir()})
	require.NoError(t, driver.Serve(filepath.Join(c.dataDir, "kubelet", "plugins_registry", name+".sock")))
	t.Cleanup(driver.Stop)
	select {
	case answer := <-driver.Notified():
		require.True(t, answer.PluginRegistered, answer.Error)
	case <-time.After(patience):
		t.Fatal("the kubelet has not registered driver " + name)
	}
	return driver
}

// driverCauses are those of CSI drivers on the node.
func driverCauses(t *testing.T, c *cluster) []why {
	driver := serveDriver(t, c, plannedDriver)
	c.apply(driverObject(plannedDriver, "false"))
	c.apply(driverObject(absentDriver, "false"))
	driver.Plan(func(call, volume string) csifake.Fault {
		switch call + " " + volume {
		case "NodePublishVolume call-fails":
			return csifake.Fault{Code: codes.Internal}
		case "NodePublishVolume call-hangs", "NodeUnpublishVolume stuck":
			return csifake.Fault{Hang: true}
		}
		return csifake.Fault{}
	})
	heal := func(t *testing.T, c *cluster, _ *asker) {
		driver.Plan(nil)
		c.mustRun("kubectl", "delete", "pods", "--all", "--grace-period=1", "--wait=false")
	}
	return []why{
		{name: "driver not registered", reason: "DriverNotRegistered", object: "no-driver", says: absentDriver,
			bring: manifest(csiVolume(absentDriver, "no-driver"), onNode("no-driver", homeNode))},
		{name: "driver call failing", reason: "DriverCallFailed", object: "call-fails", says: "planned failure of NodePublishVolume",
			bring: manifest(csiVolume(plannedDriver, "call-fails"), onNode("call-fails", homeNode))},
		{name: "driver call hanging", reason: "DriverCall", object: "call-hangs", says: "csi driver planned.example was asked for NodePublishVolume",
			bring: manifest(csiVolume(plannedDriver, "call-hangs"), onNode("call-hangs", homeNode))},
		{name: "unmount hanging", reason: "DriverCall", object: "stuck", says: "csi driver planned.example was asked for NodeUnpublishVolume",
			bring: inOrder(manifest(csiVolume(plannedDriver, "stuck"), onNode("stuck", homeNode)), func(_ *testing.T, c *cluster, _ *asker) {
				c.waitPod("name=stuck", "ready", isReady)
			}, command("delete", "pod", "stuck", "--grace-period=1", "--wait=false")), undo: heal},
	}
}

// deadNode is a node that nobody runs, with the driver whose volumes it may hold.
const deadNode = `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "dead",
	"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}, "status": {"conditions": [
	{"type": "Ready", "status": "False", "reason": "KubeletStopped", "lastTransitionTime": "2026-01-02T03:04:05Z", "message": "somebody pulled the plug"}]}}
---
{"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "dead"}, "spec": {"drivers": [
	{"name": "` + attachedDriver + `", "nodeID": "dead", "topologyKeys": null}]}}`

// attached is what the attacher of a driver writes when its volume is there.
func attached(t *testing.T, a *asker, volume string) {
	t.Helper()
	attachments := a.client.StorageV1().VolumeAttachments()
	find := func() *storagev1.VolumeAttachment {
		list, err := attachments.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for i := range list.Items {
			if name := list.Items[i].Spec.Source.PersistentVolumeName; name != nil && *name == volume {
				return &list.Items[i]
			}
		}
		return nil
	}
	require.Eventually(t, func() bool { return find() != nil }, patience, 20*time.Millisecond, "nobody attaches volume "+volume)
	_, err := attachments.Patch(t.Context(), find().Name, types.MergePatchType, []byte(`{"status": {"attached": true}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// attachCauses are those of volumes that have to be attached. The second node is one that died with its volume.
func attachCauses(t *testing.T, c *cluster) []why {
	serveDriver(t, c, attachedDriver)
	c.apply(driverObject(attachedDriver, "true"))
	second := strings.Replace(onNode("held", homeNode), `"name": "held"`, `"name": "wants-held"`, 1)
	return []why{
		{name: "node not ready", reason: "NodeNotReady", object: "held", says: "node dead is not ready",
			bring: manifest(deadNode, csiVolume(attachedDriver, "held"), onNode("held", "dead"))},
		{name: "volume held by another node", reason: "VolumeHeld", object: "wants-held", says: "volume held is attached to node dead for ",
			bring: inOrder(func(t *testing.T, _ *cluster, a *asker) { attached(t, a, "held") }, manifest(second))},
		{name: "node gone", reason: "NodeMissing", object: "held", says: "node dead is not in the cluster any more",
			bring: command("delete", "node", "dead")},
		{name: "nobody attaches", reason: "AttachVolume", object: "unattached", says: "the attacher of driver attached.example was asked",
			bring: manifest(csiVolume(attachedDriver, "unattached"), onNode("unattached", homeNode))},
		{name: "attach failing", reason: "FailedAttachVolume", object: "no-disk", says: "cannot be attached to node " + homeNode,
			bring: manifest(csiVolume("csi.berth.dev", "no-disk"), onNode("no-disk", homeNode))},
	}
}

// volumeEndCauses are those of volumes whose claim or data goes.
func volumeEndCauses() []why {
	hostPathVolume := func(name string) string {
		return strings.Replace(csiVolume("x", name), `"csi": {"driver": "x", "volumeHandle": "`+name+`"}`, `"hostPath": {"path": "/tmp"}`, 1)
	}
	bound := func(name string) func(*testing.T, *cluster, *asker) {
		return func(t *testing.T, _ *cluster, a *asker) { a.until(t, explain.KindClaim, "default", name, "Bound") }
	}
	var volume, held string
	return []why{
		{name: "claim lost", reason: "ClaimLost", object: "lost", kind: explain.KindClaim, says: "has lost its volume lost",
			bring: inOrder(manifest(hostPathVolume("lost")), bound("lost"),
				command("delete", "pv", "lost", "--wait=false"), command("patch", "pv", "lost", "-p", `{"metadata": {"finalizers": null}}`))},
		{name: "volume released", reason: "Released", object: "released", kind: explain.KindVolume, says: "kept with its data",
			bring: inOrder(manifest(hostPathVolume("released")), bound("released"), command("delete", "pvc", "released"))},
		{name: "data cannot be deleted", reason: "DeleteFailed", object: "undeletable", kind: explain.KindVolume, says: "something is mounted on",
			bring: func(t *testing.T, c *cluster, a *asker) {
				c.apply(claimManifest("undeletable", ""))
				c.apply(onVolume("undeletable", `"persistentVolumeClaim": {"claimName": "undeletable"}`))
				c.waitPod("name=undeletable", "ready", isReady)
				claim, err := a.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "undeletable", metav1.GetOptions{})
				require.NoError(t, err)
				volume = claim.Spec.VolumeName
				c.mustRun("kubectl", "delete", "pod", "undeletable", "--grace-period=1", "--timeout=2m")
				held = filepath.Join(c.dataDir, "volumes", volume, "held")
				require.NoError(t, os.Mkdir(held, 0o755))
				require.NoError(t, unix.Mount("tmpfs", held, "tmpfs", 0, "size=1m"))
				c.mustRun("kubectl", "delete", "pvc", "undeletable", "--timeout=2m")
			},
			named: func() string { return volume },
			undo:  func(t *testing.T, _ *cluster, _ *asker) { require.NoError(t, unix.Unmount(held, unix.MNT_DETACH)) }},
	}
}

const slowAPI = "API server slow"

// apiCauses slow the API server down: most of the time its process stands still.
func apiCauses() []why {
	const still, goes = 800 * time.Millisecond, 150 * time.Millisecond
	stop, stopped := make(chan struct{}), make(chan struct{})
	return []why{
		{name: slowAPI, reason: "APIServerSlow", object: "unseen", says: "scheduler has not looked at it yet",
			bring: func(t *testing.T, c *cluster, _ *asker) {
				c.apply(podManifest("unseen", shell("sleep 1000", ""), `"schedulerName": "nobody"`))
				pid := 0
				for id, command := range c.processes() {
					if strings.Contains(strings.Fields(command)[0], "berth-controlplane") {
						pid = id
					}
				}
				require.NotZero(t, pid, "the control plane's process")
				go func() {
					defer close(stopped)
					defer func() { _ = unix.Kill(pid, unix.SIGCONT) }() // if it has ended, the test says so elsewhere
					for {
						_ = unix.Kill(pid, unix.SIGSTOP)
						time.Sleep(still)
						_ = unix.Kill(pid, unix.SIGCONT)
						select {
						case <-stop:
							return
						case <-time.After(goes):
						}
					}
				}()
			},
			undo: func(*testing.T, *cluster, *asker) { close(stop); <-stopped }},
	}
}
