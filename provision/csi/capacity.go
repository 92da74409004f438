package csi

import (
	"context"
	"errors"
	"fmt"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
)

// Capacity asks the driver how many bytes of volumes with these StorageClass parameters it can still make at a place,
// given as topology segments, and how large a single one may be, 0 if it does not say. The error is
// errors.ErrUnsupported if the driver cannot tell. It is safe for concurrent use.
func (p *Provisioner) Capacity(
	ctx context.Context, parameters, place map[string]string,
) (available, largest int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	able, client, err := p.driver.controller(ctx)
	if err != nil {
		return 0, 0, err
	}
	if !able.rpc[csiapi.ControllerServiceCapability_RPC_GET_CAPACITY] {
		return 0, 0, fmt.Errorf("driver %q does not tell its capacity: %w", p.config.Name, errors.ErrUnsupported)
	}
	forDriver, _, err := splitParameters(parameters)
	if err != nil {
		return 0, 0, err
	}
	request := &csiapi.GetCapacityRequest{Parameters: forDriver}
	if able.topology && len(place) > 0 {
		request.AccessibleTopology = &csiapi.Topology{Segments: place}
	}
	resp, err := client.GetCapacity(ctx, request)
	if err != nil {
		return 0, 0, fmt.Errorf("ask driver %q for its capacity: %w", p.config.Name, err)
	}
	return resp.GetAvailableCapacity(), resp.GetMaximumVolumeSize().GetValue(), nil
}
