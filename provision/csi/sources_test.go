package csi_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

// loopDriver runs the real driver of this repository, and returns a client for what a provisioner does not do.
func loopDriver(t *testing.T, config csidriver.Config) (csidriver.Config, csiapi.ControllerClient) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it looks at loop devices")
	}
	if config.Root == "" {
		config.Root = filepath.Join(t.TempDir(), "root")
	}
	config.Endpoint, config.NodeID = socketPath(t), "node-1"
	driver, err := csidriver.New(csidriver.Deps{}, config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- driver.Start(ctx) }()
	conn, err := grpc.NewClient("unix://"+config.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		cancel()
		require.NoError(t, <-done)
	})
	client := csiapi.NewControllerClient(conn)
	_, err = client.ListVolumes(t.Context(), &csiapi.ListVolumesRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	return config, client
}

func snapshotObjects(
	handle, driver string, ready bool, change func(snapshot, content map[string]any),
) []runtime.Object {
	snapshot := map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": map[string]any{"namespace": "ns", "name": "snap", "uid": "snap-uid"},
		"status": map[string]any{
			"readyToUse": ready, "boundVolumeSnapshotContentName": "content", "restoreSize": "8Mi"},
	}
	content := map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
		"metadata": map[string]any{"name": "content"},
		"spec": map[string]any{
			"driver": driver, "sourceVolumeMode": "Filesystem",
			"volumeSnapshotRef": map[string]any{"namespace": "ns", "name": "snap", "uid": "snap-uid"},
		},
		"status": map[string]any{"snapshotHandle": handle},
	}
	change(snapshot, content)
	return []runtime.Object{&unstructured.Unstructured{Object: snapshot}, &unstructured.Unstructured{Object: content}}
}

func fromSnapshot(o *provision.VolumeOptions) {
	o.PVName = "pvc-restored"
	o.PVC.Spec.DataSource = &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "snap"}
}

func TestCopiesByARealDriver(t *testing.T) {
	config, client := loopDriver(t, csidriver.Config{})
	onNode := func(o *provision.VolumeOptions) {
		o.SelectedNode.Labels[csidriver.TopologyKey] = "node-1"
	}
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: csidriver.Name, NodeID: "node-1", TopologyKeys: []string{csidriver.TopologyKey}}}}}
	api := cluster()
	require.NoError(t, api.Tracker().Update(storagev1.SchemeGroupVersion.WithResource("csinodes"), node, ""))

	first := started(t, csi.Deps{Client: api}, csi.Config{Name: csidriver.Name, Socket: "unix://" + config.Endpoint})
	source, _, err := first.ProvisionContext(t.Context(), options(onNode))
	require.NoError(t, err)
	require.Equal(t, "node-1",
		source.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0])
	again, _, err := first.ProvisionContext(t.Context(), options(onNode))
	require.NoError(t, err)
	require.Equal(t, source, again)

	source.Spec.ClaimRef = &corev1.ObjectReference{UID: "u"}
	_, err = api.CoreV1().PersistentVolumes().Create(t.Context(), source, metav1.CreateOptions{})
	require.NoError(t, err)
	claim := options().PVC
	claim.UID, claim.Spec.VolumeName, claim.Status.Phase = "u", source.Name, corev1.ClaimBound
	_, err = api.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), claim, metav1.CreateOptions{})
	require.NoError(t, err)
	clone, _, err := first.ProvisionContext(t.Context(), options(onNode, func(o *provision.VolumeOptions) {
		o.PVName = "pvc-clone"
		o.PVC.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("16Mi")
		o.PVC.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "claim"}
	}))
	require.NoError(t, err)
	require.Equal(t, int64(16<<20), clone.Spec.Capacity.Storage().Value())

	snap, err := client.CreateSnapshot(t.Context(), &csiapi.CreateSnapshotRequest{
		Name: "snap", SourceVolumeId: source.Spec.CSI.VolumeHandle})
	require.NoError(t, err)
	objects := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(),
		snapshotObjects(snap.GetSnapshot().GetSnapshotId(), csidriver.Name, true, func(_, _ map[string]any) {})...)
	second := started(t, csi.Deps{Client: api, Dynamic: objects},
		csi.Config{Name: csidriver.Name, Socket: config.Endpoint})
	restored, _, err := second.ProvisionContext(t.Context(), options(onNode, fromSnapshot))
	require.NoError(t, err)

	volumes, err := client.ListVolumes(t.Context(), &csiapi.ListVolumesRequest{})
	require.NoError(t, err)
	sources := map[string]string{}
	for _, entry := range volumes.GetEntries() {
		from := entry.GetVolume().GetContentSource()
		sources[entry.GetVolume().GetVolumeId()] = from.GetVolume().GetVolumeId() + from.GetSnapshot().GetSnapshotId()
	}
	require.Equal(t, map[string]string{
		source.Spec.CSI.VolumeHandle: "", clone.Spec.CSI.VolumeHandle: source.Spec.CSI.VolumeHandle,
		restored.Spec.CSI.VolumeHandle: snap.GetSnapshot().GetSnapshotId(),
	}, sources)
	for _, pv := range []*corev1.PersistentVolume{source, clone, restored, restored} {
		require.NoError(t, second.DeleteContext(t.Context(), pv))
	}
	volumes, err = client.ListVolumes(t.Context(), &csiapi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Empty(t, volumes.GetEntries())
}

func TestFullNodeIsRescheduled(t *testing.T) {
	config, _ := loopDriver(t, csidriver.Config{})
	p := started(t, csi.Deps{Client: cluster(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-3"},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: csidriver.Name, NodeID: "node-3", TopologyKeys: []string{csidriver.TopologyKey}}}}})},
		csi.Config{Name: csidriver.Name, Socket: config.Endpoint})
	_, state, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
		o.SelectedNode = &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "node-3", Labels: map[string]string{csidriver.TopologyKey: "node-3"}}}
	}))
	require.ErrorContains(t, err, "accessibility_requirements")
	require.Equal(t, provision.ProvisioningReschedule, state)
}

// TestVolumeModeMayChange has each form of the annotation that external-provisioner takes as a permission, and some that it does not.
func TestVolumeModeMayChange(t *testing.T) {
	for value, may := range map[string]bool{"true": true, "True": true, "TRUE": true, "t": true, "1": true, "false": false, "yes": false, "": false} {
		f := newFakeDriver()
		socket := socketPath(t)
		f.serve(t, socket)
		objects := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), snapshotObjects("h", driverName, true, func(_, content map[string]any) {
			content["spec"].(map[string]any)["sourceVolumeMode"] = "Block"
			content["metadata"].(map[string]any)["annotations"] = map[string]any{
				"snapshot.storage.kubernetes.io/allow-volume-mode-change": value}
		})...)
		p := started(t, csi.Deps{Client: cluster(), Dynamic: objects}, csi.Config{Socket: socket})
		_, _, err := p.ProvisionContext(t.Context(), options(fromSnapshot))
		if may {
			require.NoError(t, err, value)
		} else {
			require.ErrorContains(t, err, "is not true", value)
		}
	}
}

// Controllers of snapshots keep one that is being deleted for claims that are Pending. If such a claim got no volume from it, they
// would wait for each other; an earlier process may have begun to create the volume.
func TestRestoreFromASnapshotThatIsBeingDeleted(t *testing.T) {
	deleted := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for after, text := range map[time.Duration]string{-time.Hour: "", 0: "", time.Second: "is being deleted"} {
		f := newFakeDriver()
		socket := socketPath(t)
		f.serve(t, socket)
		objects := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), snapshotObjects("h", driverName, true, func(snapshot, _ map[string]any) {
			metadata := snapshot["metadata"].(map[string]any)
			metadata["deletionTimestamp"], metadata["finalizers"] = deleted.Format(time.RFC3339), []any{"f/f"}
		})...)
		p := started(t, csi.Deps{Client: cluster(), Dynamic: objects}, csi.Config{Socket: socket})
		_, state, err := p.ProvisionContext(t.Context(), options(fromSnapshot, func(o *provision.VolumeOptions) {
			o.PVC.CreationTimestamp = metav1.NewTime(deleted.Add(after))
		}))
		if text == "" {
			require.NoError(t, err, "the claim was created %v after the deletion", after)
			require.Equal(t, "h", f.last().GetVolumeContentSource().GetSnapshot().GetSnapshotId())
		} else {
			require.ErrorContains(t, err, text)
			require.Equal(t, provision.ProvisioningNoChange, state)
			require.Nil(t, f.last())
		}
	}
}

func TestRefusedSnapshotsNameTheReason(t *testing.T) {
	for name, test := range map[string]struct {
		driver string
		ready  bool
		change func(snapshot, content map[string]any)
		text   string
	}{
		"not ready":    {driverName, false, func(_, _ map[string]any) {}, "not ready"},
		"other driver": {"x.example.com", true, func(_, _ map[string]any) {}, "x.example.com"},
		"other snapshot": {driverName, true, func(_, content map[string]any) {
			content["spec"].(map[string]any)["volumeSnapshotRef"].(map[string]any)["uid"] = "stolen"
		}, "of another snapshot"},
		"other mode": {driverName, true, func(_, content map[string]any) {
			content["spec"].(map[string]any)["sourceVolumeMode"] = "Block"
		}, "volumeMode Block"},
		"too large": {driverName, true, func(snapshot, _ map[string]any) {
			snapshot["status"].(map[string]any)["restoreSize"] = "9Mi"
		}, "less than its size, 9Mi"},
		"no handle": {driverName, true, func(_, content map[string]any) {
			delete(content, "status")
		}, "no handle"},
		"wrong kinds": {driverName, true, func(snapshot, _ map[string]any) {
			snapshot["status"] = map[string]any{"readyToUse": "yes", "boundVolumeSnapshotContentName": int64(1)}
		}, "not ready"},
		"no content": {driverName, true, func(snapshot, _ map[string]any) {
			snapshot["status"].(map[string]any)["boundVolumeSnapshotContentName"] = "missing"
		}, "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDriver()
			socket := socketPath(t)
			f.serve(t, socket)
			objects := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(),
				snapshotObjects("h", test.driver, test.ready, test.change)...)
			p := started(t, csi.Deps{Client: cluster(), Dynamic: objects}, csi.Config{Socket: socket})
			_, state, err := p.ProvisionContext(t.Context(), options(fromSnapshot))
			require.ErrorContains(t, err, test.text)
			require.Equal(t, provision.ProvisioningNoChange, state)
			require.Nil(t, f.last())
		})
	}
}
