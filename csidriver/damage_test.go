package csidriver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/internal/statefile/corrupt"
)

// TestDamagedRecordHarmsNoVolume damages the record of one of two volumes in every way, and starts the driver again.
func TestDamagedRecordHarmsNoVolume(t *testing.T) {
	ctx := context.Background()
	var w *fixture
	var damaged, other *csi.Volume
	request := func(name string) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{filesystem("ext4")},
			CapacityRange: &csi.CapacityRange{RequiredBytes: csidriver.MinSize},
		}
	}
	create := func(t *testing.T, name string) *csi.Volume {
		resp, err := w.CreateVolume(ctx, request(name))
		require.NoError(t, err)
		return resp.Volume
	}
	corrupt.Each(t, func(t *testing.T) string {
		w = newFixture(t)
		w.start()
		damaged, other = create(t, "damaged"), create(t, "other")
		image := filepath.Join(w.config.Root, "volumes", damaged.VolumeId, "disk.img")
		file, err := os.OpenFile(image, os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = file.WriteAt([]byte("precious"), 4096)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		return filepath.Join(w.config.Root, "volumes", damaged.VolumeId, "meta.json")
	}, func(t *testing.T, way, path string) {
		w.start()
		create(t, "third")
		resp, err := w.ListVolumes(ctx, &csi.ListVolumesRequest{})
		require.NoError(t, err)
		require.Len(t, resp.Entries, 3, "both, and the new one")
		_, err = w.GetCapacity(ctx, &csi.GetCapacityRequest{})
		require.NoError(t, err)
		_, err = w.ControllerPublishVolume(ctx, publishRequest(damaged.VolumeId))
		require.NoError(t, err, "the volume itself is usable")
		_, err = w.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: damaged.VolumeId, NodeId: node})
		require.NoError(t, err)
		if way != "missing" && way != "no permission" {
			_, err := os.Lstat(path + ".damaged")
			require.NoError(t, err, "what was found is kept")
		}
		require.Equal(t, damaged.VolumeId, create(t, "damaged").VolumeId, "the name is known again")
		data, err := os.ReadFile(filepath.Join(filepath.Dir(path), "disk.img"))
		require.NoError(t, err)
		require.Equal(t, "precious", string(data[4096:4104]))
		for _, id := range []string{damaged.VolumeId, other.VolumeId} {
			_, err := w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
			require.NoError(t, err)
		}
	})
}

// TestDamagedPublicationBlocksItsVolumeOnly proves that a shared volume whose publication is unknown is published nowhere, and
// that others are.
func TestDamagedPublicationBlocksItsVolumeOnly(t *testing.T) {
	ctx := context.Background()
	var w *fixture
	var ids []string
	corrupt.Each(t, func(t *testing.T) string {
		w = newFixture(t)
		w.config.Shared = true
		w.start()
		ids = nil
		for _, name := range []string{"damaged", "other"} {
			resp, err := w.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: name, VolumeCapabilities: []*csi.VolumeCapability{filesystem("ext4")},
				CapacityRange: &csi.CapacityRange{RequiredBytes: csidriver.MinSize},
			})
			require.NoError(t, err)
			ids = append(ids, resp.Volume.VolumeId)
		}
		_, err := w.ControllerPublishVolume(ctx, publishRequest(ids[0]))
		require.NoError(t, err)
		return filepath.Join(w.config.Root, "volumes", ids[0], "published.json")
	}, func(t *testing.T, way, path string) {
		w.start()
		_, err := w.ControllerPublishVolume(ctx, publishRequest(ids[1]))
		require.NoError(t, err)
		_, err = w.ListVolumes(ctx, &csi.ListVolumesRequest{})
		require.NoError(t, err)
		elsewhere := publishRequest(ids[0])
		elsewhere.NodeId = "another"
		_, err = w.ControllerPublishVolume(ctx, elsewhere)
		if way == "missing" { // as after an unpublish
			require.NoError(t, err)
			return
		}
		require.Error(t, err, "it may be published to the first node")
		if way != "no permission" {
			require.Contains(t, err.Error(), path)
			require.NotEqual(t, codes.NotFound, status.Code(err))
		}
	})
}

func publishRequest(id string) *csi.ControllerPublishVolumeRequest {
	return &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: filesystem("ext4")}
}
