package csi

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/volumehealth"
	"github.com/berth-dev/berth/volume"
)

var _ volume.HealthReporter = (*Plugin)(nil)

// ReportsHealth implements volume.HealthReporter.
func (p *Plugin) ReportsHealth(spec volume.Spec) bool {
	_, driver, err := p.healthOf(spec)
	return err == nil && driver != nil
}

// healthOf returns the volume and its driver; no driver if that does not report the health of the volume.
func (p *Plugin) healthOf(spec volume.Spec) (*source, *Driver, error) {
	s, err := sourceOf(spec, "")
	if err != nil || s.ephemeral {
		return nil, nil, err
	}
	driver, err := p.deps.Drivers.Get(s.driver)
	if err != nil || !driver.can(csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH) {
		return nil, nil, err
	}
	return s, driver, nil
}

// Health implements volume.HealthReporter by NodeGetVolumeHealth.
func (p *Plugin) Health(ctx context.Context, spec volume.Spec, path string) ([]volumehealth.Problem, error) {
	s, driver, err := p.healthOf(spec)
	if err != nil || driver == nil {
		return nil, err
	}
	call := &csipb.NodeGetVolumeHealthRequest{VolumeId: s.handle, VolumePublishPath: path}
	if driver.stages() {
		call.StagingTargetPath = p.stagingPath(p.dataOf(s, false))
	}
	var response *csipb.NodeGetVolumeHealthResponse
	err = callDriver(ctx, s.driver, "NodeGetVolumeHealth", s.name, func(ctx context.Context) error {
		response, err = driver.node.NodeGetVolumeHealth(ctx, call)
		return err
	})
	if status.Code(err) == codes.NotFound {
		return []volumehealth.Problem{{Status: csipb.VolumeHealthErrorType_INACCESSIBLE.String(), Reason: "VolumeNotFound",
			Message: fmt.Sprintf("the driver does not know volume %q on this node", s.handle)}}, nil
	}
	if err != nil {
		return nil, err
	}
	return volumehealth.FromCSI(response.GetVolumeHealth()), nil
}
