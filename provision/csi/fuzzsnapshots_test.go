package csi

import (
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzSnapshots has a driver report snapshots, groups of them and its capacity with arbitrary bytes: what is accepted is what was asked for, and
// the API can have its values.
func FuzzSnapshots(f *testing.F) {
	add := func(message proto.Message, id string) {
		data, err := proto.Marshal(message)
		require.NoError(f, err)
		f.Add(data, id)
	}
	one := &csiapi.Snapshot{SnapshotId: "s", SourceVolumeId: "v", SizeBytes: 8 << 20, ReadyToUse: true, CreationTime: timestamppb.New(time.Unix(1700000000, 5))}
	old := &csiapi.Snapshot{SnapshotId: "o", SizeBytes: -1, CreationTime: &timestamppb.Timestamp{Seconds: -62135596800}}
	late := &csiapi.Snapshot{SnapshotId: "l", CreationTime: &timestamppb.Timestamp{Seconds: 253402300799, Nanos: 999999999}}
	add(&csiapi.GetSnapshotResponse{Snapshot: one}, "s")
	add(&csiapi.GetSnapshotResponse{}, "s")
	add(&csiapi.GetSnapshotResponse{Snapshot: late}, "l")
	add(&csiapi.ListSnapshotsResponse{Entries: []*csiapi.ListSnapshotsResponse_Entry{{}, {Snapshot: old}, {Snapshot: one}}}, "s")
	add(&csiapi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: &csiapi.VolumeGroupSnapshot{
		GroupSnapshotId: "g", Snapshots: []*csiapi.Snapshot{one, old}, CreationTime: late.CreationTime,
	}}, "g")
	add(&csiapi.GetCapacityResponse{AvailableCapacity: -1, MaximumVolumeSize: wrapperspb.Int64(-2)}, "")
	f.Fuzz(func(t *testing.T, data []byte, id string) {
		get, list := &csiapi.GetSnapshotResponse{}, &csiapi.ListSnapshotsResponse{}
		if proto.Unmarshal(data, get) == nil {
			if found, err := theSnapshot(id, get.GetSnapshot()); err == nil {
				require.Equal(t, id, found.ID)
				checkTime(t, found.Created)
			}
		}
		if proto.Unmarshal(data, list) == nil {
			if found, err := listedSnapshot(id, list); err == nil {
				require.Equal(t, id, found.ID)
			} else {
				require.ErrorContains(t, err, "the driver lists no snapshot")
			}
		}
		group := &csiapi.CreateVolumeGroupSnapshotResponse{}
		if proto.Unmarshal(data, group) == nil {
			found := groupOf(group.GetGroupSnapshot())
			checkTime(t, found.Created)
			require.Len(t, found.Snapshots, len(group.GetGroupSnapshot().GetSnapshots()))
			for _, member := range found.Snapshots {
				checkTime(t, member.Created)
			}
		}
		capacity := &csiapi.GetCapacityResponse{}
		if proto.Unmarshal(data, capacity) != nil {
			return
		}
		if available, largest, err := capacityOf(capacity); err == nil {
			require.GreaterOrEqual(t, available, int64(0))
			require.True(t, largest == nil || *largest >= 0)
		}
	})
}

// checkTime checks that the API can have a time: in nanoseconds since 1970, and as text.
func checkTime(t *testing.T, at time.Time) {
	t.Helper()
	if at.IsZero() {
		return
	}
	require.True(t, time.Unix(0, at.UnixNano()).Equal(at), "%s", at)
	data, err := metav1.NewTime(at).MarshalJSON()
	require.NoError(t, err)
	require.NoError(t, (&metav1.Time{}).UnmarshalJSON(data))
}
