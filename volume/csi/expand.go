package csi

import (
	"context"
	"fmt"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
)

// Expand implements volume.Expander.
func (p *Plugin) Expand(ctx context.Context, req volume.ExpandRequest) (bool, error) {
	s, err := sourceOf(req.Spec, "")
	if err != nil {
		return false, err
	}
	driver, err := p.deps.Drivers.Get(s.driver)
	if err != nil {
		return false, err
	}
	if !driver.can(csipb.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return false, nil
	}
	size := req.Spec.PV.Spec.Capacity[corev1.ResourceStorage]
	call := &csipb.NodeExpandVolumeRequest{
		VolumeId: s.handle, VolumePath: req.Path, VolumeCapability: s.capability(driver, nil, ""),
		CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()},
	}
	if driver.stages() {
		call.StagingTargetPath = p.stagingPath(p.dataOf(s, false))
	}
	if call.Secrets, err = p.secrets(ctx, s.expandSecret, ""); err != nil {
		return false, err
	}
	err = callDriver(ctx, s.driver, "NodeExpandVolume", s.name, func(ctx context.Context) error {
		_, err := driver.node.NodeExpandVolume(ctx, call)
		return err
	})
	switch status.Code(err) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		err = volume.Infeasible(err)
	default:
		if isUncertainStatus(err) {
			err = volume.Uncertain(err)
		}
	}
	return err == nil, err
}

// Stats implements volume.StatsProvider.
func (p *Plugin) Stats(ctx context.Context, spec volume.Spec, path string) (*volume.Stats, error) {
	s, err := sourceOf(spec, "")
	if err != nil {
		return nil, err
	}
	driver, err := p.deps.Drivers.Get(s.driver)
	if err != nil {
		return nil, err
	}
	if !driver.can(csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return nil, nil
	}
	call := &csipb.NodeGetVolumeStatsRequest{VolumeId: s.handle, VolumePath: path}
	switch {
	case s.ephemeral: // its handle is made from the Pod's UID, which the spec does not have
		data, err := loadData(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		call.VolumeId = data.VolumeHandle
	case driver.stages():
		call.StagingTargetPath = p.stagingPath(p.dataOf(s, false))
	}
	var response *csipb.NodeGetVolumeStatsResponse
	err = callDriver(ctx, s.driver, "NodeGetVolumeStats", s.name, func(ctx context.Context) error {
		response, err = driver.node.NodeGetVolumeStats(ctx, call)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(response.GetUsage()) == 0 { // zeros would be taken for a volume that is full
		return nil, fmt.Errorf("CSI driver %s responded to NodeGetVolumeStats of volume %q without a usage", s.driver, s.name)
	}
	stats := &volume.Stats{}
	for _, usage := range response.GetUsage() {
		switch usage.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			stats.Capacity, stats.Available, stats.Used = usage.GetTotal(), usage.GetAvailable(), usage.GetUsed()
		case csipb.VolumeUsage_INODES:
			stats.Inodes, stats.InodesFree, stats.InodesUsed = usage.GetTotal(), usage.GetAvailable(), usage.GetUsed()
		}
	}
	return stats, nil
}
