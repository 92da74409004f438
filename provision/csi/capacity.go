package csi

import (
	"context"
	"errors"
	"fmt"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/utils/ptr"
)

// Capacity returns how many bytes of volumes with these StorageClass parameters the driver can still create in a topology,
// and the size of the largest volume, nil if the driver does not report it. The error is errors.ErrUnsupported if the driver
// does not report its capacity. It is safe for concurrent use.
func (p *Provisioner) Capacity(
	ctx context.Context, parameters, segments map[string]string,
) (available int64, largest *int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	capabilities, client, err := p.driver.controller(ctx)
	if err != nil {
		return 0, nil, err
	}
	if !capabilities.rpc[csiapi.ControllerServiceCapability_RPC_GET_CAPACITY] {
		return 0, nil, fmt.Errorf("driver %q does not report its capacity: %w", p.config.Name, errors.ErrUnsupported)
	}
	forDriver, _, err := splitParameters(parameters)
	if err != nil {
		return 0, nil, err
	}
	request := &csiapi.GetCapacityRequest{Parameters: forDriver}
	if capabilities.topology && len(segments) > 0 {
		request.AccessibleTopology = &csiapi.Topology{Segments: segments}
	}
	resp, err := client.GetCapacity(ctx, request)
	if err != nil {
		return 0, nil, fmt.Errorf("get capacity of driver %q: %w", p.config.Name, err)
	}
	if available, largest, err = capacityOf(resp); err != nil {
		return 0, nil, fmt.Errorf("get capacity of driver %q: %w", p.config.Name, err)
	}
	return available, largest, nil
}

// capacityOf returns what a driver reports, which the API server would refuse if it were negative.
func capacityOf(resp *csiapi.GetCapacityResponse) (available int64, largest *int64, err error) {
	available = resp.GetAvailableCapacity()
	if reported := resp.GetMaximumVolumeSize(); reported != nil { // 0: no volume fits, whatever is available
		largest = ptr.To(reported.GetValue())
	}
	if available < 0 || ptr.Deref(largest, 0) < 0 {
		return 0, nil, fmt.Errorf("it reports %d bytes, and volumes of up to %d bytes", available, ptr.Deref(largest, 0))
	}
	return available, largest, nil
}
