package csidriver_test

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
)

func (w *fixture) snapshotMetadata() csi.SnapshotMetadataClient {
	conn, err := grpc.NewClient("unix://"+w.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, conn.Close()) })
	return csi.NewSnapshotMetadataClient(conn)
}

// allocated returns the ranges of a snapshot that have data.
func (w *fixture) allocated(req *csi.GetMetadataAllocatedRequest) (found [][2]int64, messages int, err error) {
	stream, err := w.snapshotMetadata().GetMetadataAllocated(w.t.Context(), req)
	require.NoError(w.t, err)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found, messages, nil
		}
		if err != nil {
			return nil, 0, err
		}
		messages++
		for _, b := range resp.GetBlockMetadata() {
			found = append(found, [2]int64{b.GetByteOffset() / mib, b.GetSizeBytes() / mib})
		}
	}
}

// delta returns the ranges in which two snapshots differ, in MiB.
func (w *fixture) delta(req *csi.GetMetadataDeltaRequest) (found [][2]int64, err error) {
	stream, err := w.snapshotMetadata().GetMetadataDelta(w.t.Context(), req)
	require.NoError(w.t, err)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		require.Equal(w.t, int64(64*mib), resp.GetVolumeCapacityBytes())
		for _, b := range resp.GetBlockMetadata() {
			found = append(found, [2]int64{b.GetByteOffset() / mib, b.GetSizeBytes() / mib})
		}
	}
}

func TestChangedBlocks(t *testing.T) {
	requireProgram(t, "mkfs.xfs")
	w := newFixture(t)
	w.mountRoot("xfs", 600*mib)
	w.start()
	require.Contains(t, w.services(), csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
	d := w.create("d", 64*mib, rawBlock())
	d.mount()
	write := func(offset, length int64) {
		t.Helper()
		device, err := os.OpenFile(d.target, os.O_WRONLY, 0)
		require.NoError(t, err)
		content := make([]byte, length*mib)
		for i := range content {
			content[i] = byte(offset) + 1
		}
		_, err = device.WriteAt(content, offset*mib)
		require.NoError(t, errors.Join(err, device.Sync(), device.Close()))
	}
	id := func(source *csi.VolumeContentSource, err error) string {
		t.Helper()
		require.NoError(t, err)
		return source.GetSnapshot().GetSnapshotId()
	}
	write(0, 4)
	write(16, 8)
	one := id(w.snapshot("one", d))
	write(2, 1)
	write(20, 8)
	two := id(w.snapshot("two", d))
	d.unmount()

	found, messages, err := w.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: one})
	require.NoError(t, err)
	require.Equal(t, [][2]int64{{0, 4}, {16, 8}}, found)
	require.Equal(t, 1, messages)
	found, messages, err = w.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: two, StartingOffset: 2 * mib, MaxResults: 1})
	require.NoError(t, err)
	require.Equal(t, [][2]int64{{2, 2}, {16, 12}}, found)
	require.Equal(t, 2, messages)
	changed, err := w.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: one, TargetSnapshotId: two})
	require.NoError(t, err)
	require.Equal(t, [][2]int64{{2, 1}, {20, 8}}, changed)
	changed, err = w.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: two, TargetSnapshotId: two})
	require.NoError(t, err)
	require.Empty(t, changed)
	changed, err = w.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: one, TargetSnapshotId: two, StartingOffset: 22 * mib})
	require.NoError(t, err)
	require.Equal(t, [][2]int64{{22, 6}}, changed)

	other := id(w.snapshot("other", w.create("other", 64*mib, rawBlock())))
	for want, req := range map[codes.Code][]*csi.GetMetadataDeltaRequest{
		codes.InvalidArgument: {{TargetSnapshotId: two}, {BaseSnapshotId: one}, {BaseSnapshotId: one, TargetSnapshotId: other},
			{BaseSnapshotId: one, TargetSnapshotId: two, StartingOffset: -1}, {BaseSnapshotId: one, TargetSnapshotId: two, MaxResults: -1}},
		codes.NotFound:   {{BaseSnapshotId: "../one", TargetSnapshotId: two}, {BaseSnapshotId: one, TargetSnapshotId: "gone"}},
		codes.OutOfRange: {{BaseSnapshotId: one, TargetSnapshotId: two, StartingOffset: 65 * mib}},
	} {
		for _, r := range req {
			_, err := w.delta(r)
			requireCode(t, want, err)
		}
	}
}

func (w *fixture) services() []csi.PluginCapability_Service_Type {
	conn, err := grpc.NewClient("unix://"+w.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(w.t, err)
	defer conn.Close()
	resp, err := csi.NewIdentityClient(conn).GetPluginCapabilities(w.t.Context(), &csi.GetPluginCapabilitiesRequest{})
	require.NoError(w.t, err)
	var services []csi.PluginCapability_Service_Type
	for _, c := range resp.GetCapabilities() {
		services = append(services, c.GetService().GetType())
	}
	return services
}

func TestNoChangedBlocksWithoutReflinks(t *testing.T) {
	w := newFixture(t)
	w.mountRoot("tmpfs", 64*mib)
	w.start()
	require.NotContains(t, w.services(), csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
	_, _, err := w.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "any"})
	requireCode(t, codes.Unimplemented, err)
}
