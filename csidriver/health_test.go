package csidriver_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// TestHealthOfVolumes has a filesystem in which the kernel finds an error, and an image that is lost, of two volumes.
func TestHealthOfVolumes(t *testing.T) {
	w := newFixture(t)
	w.start()
	healthOf := func(d *disk) []string {
		t.Helper()
		resp, err := w.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{
			VolumeId: d.id, VolumePublishPath: d.target, StagingTargetPath: d.staging})
		require.NoError(t, err)
		var found []string
		for _, entry := range resp.VolumeHealth.HealthStatuses {
			found = append(found, entry.Status.String()+" "+entry.Reason)
		}
		return found
	}
	bad, lost := w.create("bad", 16*mib, filesystem("ext4")), w.create("lost", 16*mib, filesystem("ext4"))
	bad.mount()
	lost.mount()
	require.Empty(t, healthOf(bad))
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(bad.target))
	require.NoError(t, err)
	require.Len(t, mounts, 1)
	trigger := fmt.Sprintf("/sys/fs/ext4/loop%d/trigger_fs_error", mounts[0].Minor)
	require.NoError(t, os.WriteFile(trigger, []byte("made by a test"), 0))
	// The kernel adds the error to its count in a work queue.
	require.Eventually(t, func() bool { return slices.Contains(healthOf(bad), "DATA_LOSS FilesystemErrors") }, time.Minute, time.Millisecond)
	require.Empty(t, healthOf(lost))

	image := lost.image()
	require.NoError(t, os.Rename(image, image+".away"))
	_, err = w.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: lost.id, VolumePublishPath: lost.target})
	requireCode(t, codes.NotFound, err)
	require.NoError(t, os.Rename(image+".away", image))
	require.Empty(t, healthOf(lost))
	bad.unmount()
	lost.unmount()
}
