package csidriver_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

func idsOfGroup(group *csi.VolumeGroupSnapshot) []string {
	var ids []string
	for _, snapshot := range group.GetSnapshots() {
		ids = append(ids, snapshot.GetSnapshotId())
	}
	return ids
}

// TestGroupSnapshots takes one of two mounted volumes, restores from it, and deletes it.
func TestGroupSnapshots(t *testing.T) {
	w := newFixture(t)
	w.start()
	a, b := w.create("a", 16*mib, filesystem("ext4")), w.create("b", 16*mib, filesystem("ext4"))
	for _, d := range []*disk{a, b} {
		d.mount()
		d.write("file", "first") // not synced: the snapshots have it all the same
	}
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{b.id, a.id}}
	taken, err := w.CreateVolumeGroupSnapshot(t.Context(), request)
	require.NoError(t, err)
	group := taken.GetGroupSnapshot()
	require.True(t, group.GetReadyToUse())
	require.Len(t, group.GetSnapshots(), 2)
	for _, d := range []*disk{a, b} {
		d.write("file", "second") // works, so none is frozen any more
	}
	again, err := w.CreateVolumeGroupSnapshot(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, group.String(), again.GetGroupSnapshot().String(), "the same name is the same group")
	_, err = w.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{a.id}})
	requireCode(t, codes.AlreadyExists, err)

	for _, snapshot := range group.GetSnapshots() {
		require.Equal(t, group.GetGroupSnapshotId(), snapshot.GetGroupSnapshotId())
		require.Equal(t, group.GetCreationTime().String(), snapshot.GetCreationTime().String())
		restored := w.create("from-"+snapshot.GetSourceVolumeId(), 16*mib, filesystem("ext4"), snapshotSource(snapshot.GetSnapshotId()))
		restored.mount()
		require.Equal(t, "first", restored.read("file"))
		restored.unmount()
		require.NoError(t, restored.remove())
		_, err := w.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snapshot.GetSnapshotId()})
		requireCode(t, codes.FailedPrecondition, err)
	}
	get := &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: idsOfGroup(group)}
	read, err := w.GetVolumeGroupSnapshot(t.Context(), get)
	require.NoError(t, err)
	require.Equal(t, group.String(), read.GetGroupSnapshot().String())
	get.SnapshotIds = get.SnapshotIds[:1]
	_, err = w.GetVolumeGroupSnapshot(t.Context(), get)
	requireCode(t, codes.InvalidArgument, err)

	remove := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: idsOfGroup(group)[:1]}
	_, err = w.DeleteVolumeGroupSnapshot(t.Context(), remove)
	requireCode(t, codes.InvalidArgument, err)
	remove.SnapshotIds = idsOfGroup(group)
	for range 2 { // also when it is gone
		_, err = w.DeleteVolumeGroupSnapshot(t.Context(), remove)
		require.NoError(t, err)
	}
	list, err := w.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetEntries())
	a.unmount()
	b.unmount()
}

// TestInterruptedGroupSnapshot leaves some of a group, which is taken again as a whole.
func TestInterruptedGroupSnapshot(t *testing.T) {
	w := newFixture(t)
	w.start()
	a, b := w.create("a", 16*mib, filesystem("ext4")), w.create("b", 16*mib, filesystem("ext4"))
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{a.id, b.id}}
	taken, err := w.CreateVolumeGroupSnapshot(t.Context(), request)
	require.NoError(t, err)
	first := taken.GetGroupSnapshot()
	require.NoError(t, os.RemoveAll(filepath.Join(w.config.Root, "snapshots", first.GetSnapshots()[0].GetSnapshotId())))
	_, err = w.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: first.GetGroupSnapshotId(), SnapshotIds: idsOfGroup(first)})
	requireCode(t, codes.NotFound, err)
	taken, err = w.CreateVolumeGroupSnapshot(t.Context(), request)
	require.NoError(t, err)
	require.Len(t, taken.GetGroupSnapshot().GetSnapshots(), 2)
	require.NotEqual(t, first.GetCreationTime().String(), taken.GetGroupSnapshot().GetCreationTime().String(), "all are of one moment")
}

func TestParametersOfGroupSnapshots(t *testing.T) {
	w := newFixture(t)
	w.start()
	disk := w.create("a", 16*mib, filesystem("ext4"))
	take := func(parameters map[string]string) error {
		_, err := w.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: "g", SourceVolumeIds: []string{disk.id}, Parameters: parameters,
		})
		return err
	}
	for _, refused := range []map[string]string{{"deletionPolicy": "Keep"}, {"colour": "blue"}} {
		requireCode(t, codes.InvalidArgument, take(refused))
	}
	require.NoError(t, take(map[string]string{"deletionPolicy": "Retain", "csi.storage.k8s.io/volumegroupsnapshot/name": "g"}))
}
