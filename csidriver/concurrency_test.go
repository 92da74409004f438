package csidriver_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestCrowd has many callers, with deadlines too short for much, do everything at once to a few volumes, while the
// driver is stopped and started. The volumes can be removed after any result, and nothing is left.
func TestCrowd(t *testing.T) {
	w := newFixture(t)
	w.start()
	const volumes = 3
	for round := range 3 {
		var disks []*disk
		for i := range volumes {
			disks = append(disks, w.create(fmt.Sprint("crowd", i), 16*mib, filesystem("ext4")))
		}
		var crowd sync.WaitGroup
		for caller := range 8 {
			dice := rand.New(rand.NewPCG(uint64(round), uint64(caller)))
			crowd.Go(func() {
				for range 40 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+dice.IntN(60))*time.Millisecond)
					err := disks[dice.IntN(volumes)].randomOperation(ctx, dice)
					cancel()
					switch code := status.Code(err); code {
					case codes.OK, codes.Aborted, codes.DeadlineExceeded, codes.FailedPrecondition, codes.NotFound,
						codes.Canceled, codes.Unavailable, codes.AlreadyExists:
					default:
						t.Errorf("unexpected: %v", err)
					}
				}
			})
		}
		crowd.Wait()
		w.start() // waits for what is under way
		for _, d := range disks {
			d.w = w
			d.unmount()
			require.NoError(t, d.remove())
		}
		require.Empty(t, w.loops())
	}
	snapshots, err := w.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	for _, entry := range snapshots.GetEntries() {
		_, err := w.DeleteSnapshot(t.Context(),
			&csi.DeleteSnapshotRequest{SnapshotId: entry.GetSnapshot().GetSnapshotId()})
		require.NoError(t, err)
	}
}

func (d *disk) randomOperation(ctx context.Context, dice *rand.Rand) (err error) {
	switch dice.IntN(9) {
	case 0, 1:
		_, err = d.w.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
			VolumeId: d.id, NodeId: node, VolumeCapability: d.capability})
	case 2, 3:
		_, err = d.w.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: d.id, StagingTargetPath: d.staging, VolumeCapability: d.capability})
	case 4:
		_, err = d.w.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: d.id, StagingTargetPath: d.staging, TargetPath: d.target, VolumeCapability: d.capability})
	case 5:
		_, err = d.w.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: d.id, TargetPath: d.target})
	case 6:
		_, err = d.w.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: d.id, StagingTargetPath: d.staging})
	case 7:
		_, err = d.w.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: d.id, NodeId: node})
	case 8:
		_, err = d.w.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
			Name: fmt.Sprint("snap", dice.IntN(4), d.id), SourceVolumeId: d.id})
	}
	return err
}

// TestKilledAtAnyMoment kills the driver's process in the middle of its work, again and again. What the volume holds
// survives, and at the end everything can be taken down.
func TestKilledAtAnyMoment(t *testing.T) {
	w := newFixture(t)
	w.startProcess()
	dice := rand.New(rand.NewPCG(7, 7))
	d := w.create("killed", 16*mib, filesystem("ext4"))
	d.mount()
	d.write("file", "kept")
	require.NoError(t, exec.Command("sync", "-f", d.target).Run())
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(dice.IntN(40))*time.Millisecond)
		for ctx.Err() == nil {
			_ = d.randomOperation(ctx, dice)
		}
		cancel()
		w.startProcess()
	}
	d.mount()
	require.Equal(t, "kept", d.read("file"))
	d.write("file", "kept again")
	d.unmount()
	require.NoError(t, d.remove())
	left, err := os.ReadDir(filepath.Join(w.config.Root, "volumes"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.Empty(t, w.loops())
	w.start() // finishes clearing up
	left, err = os.ReadDir(filepath.Join(w.config.Root, "tmp"))
	require.NoError(t, err)
	require.Empty(t, left)
}
