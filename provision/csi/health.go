package csi

import (
	"context"
	"errors"
	"fmt"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/csipages"
	"github.com/berth-dev/berth/internal/volumehealth"
	"github.com/berth-dev/berth/provision/health"
)

var _ health.Driver = (*Provisioner)(nil)

// VolumeHealth implements health.Driver by ControllerListVolumeHealth or ControllerGetVolumeHealth, whichever the driver
// supports.
func (p *Provisioner) VolumeHealth(ctx context.Context, handles func() []string) (map[string][]health.Problem, error) {
	capabilities, client, err := p.driver.controller(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case capabilities.rpc[csiapi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH]:
		return p.listVolumeHealth(ctx, client)
	case capabilities.rpc[csiapi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH]:
		return p.getVolumeHealth(ctx, client, handles())
	}
	return nil, fmt.Errorf("driver %q does not report the health of volumes: %w", p.config.Name, errors.ErrUnsupported)
}

func (p *Provisioner) listVolumeHealth(ctx context.Context, client csiapi.ControllerClient) (map[string][]health.Problem, error) {
	found := map[string][]health.Problem{}
	err := csipages.Each(func(token string) (string, error) {
		calling, cancel := context.WithTimeout(ctx, p.config.Timeout)
		defer cancel()
		page, err := client.ControllerListVolumeHealth(calling, &csiapi.ControllerListVolumeHealthRequest{StartingToken: token})
		for _, entry := range page.GetEntries() {
			found[entry.GetVolumeId()] = append(found[entry.GetVolumeId()], volumehealth.FromCSI(entry)...)
		}
		return page.GetNextToken(), err
	})
	if err != nil {
		return nil, fmt.Errorf("list the abnormal volumes of driver %q: %w", p.config.Name, err)
	}
	return found, nil
}

func (p *Provisioner) getVolumeHealth(ctx context.Context, client csiapi.ControllerClient, handles []string) (map[string][]health.Problem, error) {
	found := map[string][]health.Problem{}
	for _, handle := range handles {
		calling, cancel := context.WithTimeout(ctx, p.config.Timeout)
		resp, err := client.ControllerGetVolumeHealth(calling, &csiapi.ControllerGetVolumeHealthRequest{VolumeId: handle})
		cancel()
		switch {
		case status.Code(err) == codes.NotFound:
			found[handle] = []health.Problem{{Status: "INACCESSIBLE", Reason: "VolumeNotFound",
				Message: "the driver does not know the volume: it was deleted outside of Kubernetes"}}
		case err != nil:
			return nil, fmt.Errorf("get the health of volume %q of driver %q: %w", handle, p.config.Name, err)
		default:
			found[handle] = volumehealth.FromCSI(resp.GetVolumeHealth())
		}
	}
	return found, nil
}
