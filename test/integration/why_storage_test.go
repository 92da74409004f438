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
// one that does not run.
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
	case <-time.After(waitTimeout):
		t.Fatal("the kubelet has not registered driver " + name)
	}
	return driver
}

// driverCauses are those of CSI drivers on the node.
func driverCauses(t *testing.T, c *cluster) []causeCase {
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
	heal := func(t *testing.T, c *cluster, _ *explainLoop) {
		driver.Plan(nil)
		c.mustRun("kubectl", "delete", "pods", "--all", "--grace-period=1", "--wait=false")
	}
	return []causeCase{
		{name: "driver not registered", reason: "DriverNotRegistered", object: "no-driver", wantText: absentDriver,
			setUp: manifest(csiVolume(absentDriver, "no-driver"), onNode("no-driver", homeNode))},
		{name: "driver call failing", reason: "DriverCallFailed", object: "call-fails", wantText: "planned failure of NodePublishVolume",
			setUp: manifest(csiVolume(plannedDriver, "call-fails"), onNode("call-fails", homeNode))},
		{name: "driver call hanging", reason: "DriverCall", object: "call-hangs", wantText: "csi driver planned.example was called for NodePublishVolume",
			setUp: manifest(csiVolume(plannedDriver, "call-hangs"), onNode("call-hangs", homeNode))},
		{name: "unmount hanging", reason: "DriverCall", object: "stuck", wantText: "csi driver planned.example was called for NodeUnpublishVolume",
			setUp: inOrder(manifest(csiVolume(plannedDriver, "stuck"), onNode("stuck", homeNode)), func(_ *testing.T, c *cluster, _ *explainLoop) {
				c.waitPod("name=stuck", "ready", isReady)
			}, command("delete", "pod", "stuck", "--grace-period=1", "--wait=false")), undo: heal},
	}
}

// deadNode is a Node without a kubelet, with the driver whose volumes it may hold.
const deadNode = `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "dead",
	"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}, "status": {"conditions": [
	{"type": "Ready", "status": "False", "reason": "KubeletStopped", "lastTransitionTime": "2026-01-02T03:04:05Z", "message": "power lost"}]}}
---
{"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "dead"}, "spec": {"drivers": [
	{"name": "` + attachedDriver + `", "nodeID": "dead", "topologyKeys": null}]}}`

// attached is what the attacher of a driver writes when its volume is there.
func attached(t *testing.T, a *explainLoop, volume string) {
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
	require.Eventually(t, func() bool { return find() != nil }, waitTimeout, 20*time.Millisecond, "no VolumeAttachment for volume "+volume)
	_, err := attachments.Patch(t.Context(), find().Name, types.MergePatchType, []byte(`{"status": {"attached": true}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// attachCauses are those of volumes that have to be attached. The second node is one that died with its volume.
func attachCauses(t *testing.T, c *cluster) []causeCase {
	serveDriver(t, c, attachedDriver)
	c.apply(driverObject(attachedDriver, "true"))
	second := strings.Replace(onNode("held", homeNode), `"name": "held"`, `"name": "wants-held"`, 1)
	return []causeCase{
		{name: "node not ready", reason: "NodeNotReady", object: "held", wantText: "node dead is not ready",
			setUp: manifest(deadNode, csiVolume(attachedDriver, "held"), onNode("held", "dead"))},
		{name: "volume held by another node", reason: "VolumeHeld", object: "wants-held", wantText: "volume held is attached to node dead for ",
			setUp: inOrder(func(t *testing.T, _ *cluster, a *explainLoop) { attached(t, a, "held") }, manifest(second))},
		{name: "node gone", reason: "NodeMissing", object: "held", wantText: "node dead does not exist any more",
			setUp: command("delete", "node", "dead")},
		{name: "no attacher", reason: "AttachVolume", object: "unattached", wantText: "the attacher of driver attached.example was called",
			setUp: manifest(csiVolume(attachedDriver, "unattached"), onNode("unattached", homeNode))},
		{name: "attach failing", reason: "FailedAttachVolume", object: "no-disk", wantText: "cannot be attached to node " + homeNode,
			setUp: manifest(csiVolume("csi.berth.dev", "no-disk"), onNode("no-disk", homeNode))},
	}
}

// volumeEndCauses are those of volumes whose claim or data goes.
func volumeEndCauses() []causeCase {
	hostPathVolume := func(name string) string {
		return strings.Replace(csiVolume("x", name), `"csi": {"driver": "x", "volumeHandle": "`+name+`"}`, `"hostPath": {"path": "/tmp"}`, 1)
	}
	bound := func(name string) func(*testing.T, *cluster, *explainLoop) {
		return func(t *testing.T, _ *cluster, a *explainLoop) {
			a.waitReason(t, explain.KindClaim, "default", name, "Bound")
		}
	}
	var volume, held string
	return []causeCase{
		{name: "claim lost", reason: "ClaimLost", object: "lost", kind: explain.KindClaim, wantText: "has lost its volume lost",
			setUp: inOrder(manifest(hostPathVolume("lost")), bound("lost"),
				command("delete", "pv", "lost", "--wait=false"), command("patch", "pv", "lost", "-p", `{"metadata": {"finalizers": null}}`))},
		{name: "volume released", reason: "Released", object: "released", kind: explain.KindVolume, wantText: "kept with its data",
			setUp: inOrder(manifest(hostPathVolume("released")), bound("released"), command("delete", "pvc", "released"))},
		{name: "data cannot be deleted", reason: "DeleteFailed", object: "undeletable", kind: explain.KindVolume, wantText: "something is mounted on",
			setUp: func(t *testing.T, c *cluster, a *explainLoop) {
				c.apply(claimManifest("undeletable", `"storageClassName": "berth-local"`))
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
			resolveName: func() string { return volume },
			undo: func(t *testing.T, _ *cluster, _ *explainLoop) {
				require.NoError(t, unix.Unmount(held, unix.MNT_DETACH))
			}},
	}
}

const slowAPI = "API server slow"

// apiCauses slow the API server down: most of the time its process stands still.
func apiCauses() []causeCase {
	const still, goes = 800 * time.Millisecond, 150 * time.Millisecond
	stop, stopped := make(chan struct{}), make(chan struct{})
	return []causeCase{
		{name: slowAPI, reason: "APIServerSlow", object: "unseen", wantText: "scheduler has not looked at it yet",
			setUp: func(t *testing.T, c *cluster, _ *explainLoop) {
				c.apply(podManifest("unseen", shell("sleep 1000", ""), `"schedulerName": "absent"`))
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
			undo: func(*testing.T, *cluster, *explainLoop) { close(stop); <-stopped }},
	}
}
