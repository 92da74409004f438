package fake

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (d *Driver) stages() bool {
	return slices.Contains(d.Config.Capabilities, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
}

// NodeGetCapabilities implements the node service.
func (d *Driver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (
	*csipb.NodeGetCapabilitiesResponse, error,
) {
	response := &csipb.NodeGetCapabilitiesResponse{}
	for _, capability := range d.Config.Capabilities {
		response.Capabilities = append(response.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: capability}},
		})
	}
	return response, nil
}

// NodeGetInfo implements the node service.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csipb.NodeGetInfoResponse{
		NodeId: d.Config.NodeID, MaxVolumesPerNode: d.Config.MaxVolumes,
		AccessibleTopology: &csipb.Topology{Segments: maps.Clone(d.Config.Topology)},
	}, nil
}

// NodeStageVolume implements the node service.
func (d *Driver) NodeStageVolume(ctx context.Context, req *csipb.NodeStageVolumeRequest) (
	*csipb.NodeStageVolumeResponse, error,
) {
	err := d.call(ctx, "NodeStageVolume", req.VolumeId, req, func() error {
		if path, ok := d.staged[req.VolumeId]; ok && path != req.StagingTargetPath {
			return status.Error(codes.FailedPrecondition, "staged elsewhere")
		}
		if req.VolumeCapability.GetBlock() == nil {
			data := filepath.Join(d.Config.Dir, "data", req.VolumeId)
			if err := os.MkdirAll(data, 0o755); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			if err := bind(data, req.StagingTargetPath); err != nil {
				return err
			}
		}
		d.staged[req.VolumeId] = req.StagingTargetPath
		return nil
	})
	return &csipb.NodeStageVolumeResponse{}, err
}

// NodeUnstageVolume implements the node service.
func (d *Driver) NodeUnstageVolume(ctx context.Context, req *csipb.NodeUnstageVolumeRequest) (
	*csipb.NodeUnstageVolumeResponse, error,
) {
	err := d.call(ctx, "NodeUnstageVolume", req.VolumeId, req, func() error {
		if len(d.published[req.VolumeId]) > 0 {
			return status.Error(codes.FailedPrecondition, "still published")
		}
		if err := unbind(ctx, req.StagingTargetPath); err != nil {
			return err
		}
		delete(d.staged, req.VolumeId)
		return nil
	})
	return &csipb.NodeUnstageVolumeResponse{}, err
}

// NodePublishVolume implements the node service.
func (d *Driver) NodePublishVolume(ctx context.Context, req *csipb.NodePublishVolumeRequest) (
	*csipb.NodePublishVolumeResponse, error,
) {
	err := d.call(ctx, "NodePublishVolume", req.VolumeId, req, func() error {
		if d.Config.PublishesNothing {
			return nil
		}
		if d.stages() && req.StagingTargetPath != "" && d.staged[req.VolumeId] != req.StagingTargetPath {
			return status.Error(codes.FailedPrecondition, "not staged there")
		}
		from := filepath.Join(d.Config.Dir, "data", req.VolumeId)
		if req.VolumeCapability.GetBlock() != nil {
			from = d.Config.Device
			if err := touch(req.TargetPath); err != nil {
				return err
			}
		} else {
			if err := os.MkdirAll(from, 0o755); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			if err := os.Mkdir(req.TargetPath, 0o750); err != nil && !os.IsExist(err) {
				return status.Error(codes.Internal, err.Error())
			}
		}
		if err := bind(from, req.TargetPath); err != nil {
			return err
		}
		if d.published[req.VolumeId] == nil {
			d.published[req.VolumeId] = make(map[string]string)
		}
		d.published[req.VolumeId][req.TargetPath] = req.StagingTargetPath
		return nil
	})
	return &csipb.NodePublishVolumeResponse{}, err
}

// NodeUnpublishVolume implements the node service.
func (d *Driver) NodeUnpublishVolume(ctx context.Context, req *csipb.NodeUnpublishVolumeRequest) (
	*csipb.NodeUnpublishVolumeResponse, error,
) {
	err := d.call(ctx, "NodeUnpublishVolume", req.VolumeId, req, func() error {
		if err := unbind(ctx, req.TargetPath); err != nil {
			return err
		}
		if err := remove(req.TargetPath); err != nil {
			return err
		}
		delete(d.published[req.VolumeId], req.TargetPath)
		return nil
	})
	return &csipb.NodeUnpublishVolumeResponse{}, err
}

// NodeExpandVolume implements the node service.
func (d *Driver) NodeExpandVolume(ctx context.Context, req *csipb.NodeExpandVolumeRequest) (
	*csipb.NodeExpandVolumeResponse, error,
) {
	err := d.call(ctx, "NodeExpandVolume", req.VolumeId, req, func() error { return nil })
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: req.CapacityRange.GetRequiredBytes()}, err
}

// NodeGetVolumeStats implements the node service.
func (d *Driver) NodeGetVolumeStats(ctx context.Context, req *csipb.NodeGetVolumeStatsRequest) (
	*csipb.NodeGetVolumeStatsResponse, error,
) {
	err := d.call(ctx, "NodeGetVolumeStats", req.VolumeId, req, func() error { return nil })
	if d.Config.NoUsage {
		return &csipb.NodeGetVolumeStatsResponse{}, err
	}
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: 100, Available: 60, Used: 40},
		{Unit: csipb.VolumeUsage_INODES, Total: 10, Available: 7, Used: 3},
	}}, err
}

// NodeGetVolumeHealth implements the node service: it reports what SetHealth was called with.
func (d *Driver) NodeGetVolumeHealth(ctx context.Context, req *csipb.NodeGetVolumeHealthRequest) (
	*csipb.NodeGetVolumeHealthResponse, error,
) {
	health := &csipb.VolumeHealth{VolumeId: req.VolumeId}
	err := d.call(ctx, "NodeGetVolumeHealth", req.VolumeId, req, func() error {
		health.HealthStatuses = d.health
		return nil
	})
	return &csipb.NodeGetVolumeHealthResponse{VolumeHealth: health}, err
}

// SetHealth sets what is wrong with every volume.
func (d *Driver) SetHealth(problems ...*csipb.VolumeHealth_VolumeHealthEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.health = problems
}

// touch creates an empty file unless it exists. It does not open an existing file.
func touch(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if os.IsExist(err) {
		return nil
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return file.Close()
}
