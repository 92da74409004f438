package csidriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/csidriver/iolimit"
)

// ControllerModifyVolume implements csi.ControllerServer: it sets the limits of the volume's I/O. What the parameters do not
// name is not limited any more.
func (d *Driver) ControllerModifyVolume(
	ctx context.Context, req *csi.ControllerModifyVolumeRequest,
) (*csi.ControllerModifyVolumeResponse, error) {
	id := req.GetVolumeId()
	if id == "" {
		return nil, missingField("volume_id")
	}
	if _, err := d.volume(id); err != nil {
		return nil, err
	}
	limits, err := d.parseLimits(req.GetMutableParameters())
	if err != nil {
		return nil, err
	}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.ControllerModifyVolumeResponse, error) {
		if err := d.modify(id, limits); err != nil {
			return nil, grpcError(err)
		}
		return &csi.ControllerModifyVolumeResponse{}, nil
	})
}

// parseLimits returns the limits that mutable parameters name. It rejects limits that this node cannot enforce.
func (d *Driver) parseLimits(mutable map[string]string) (iolimit.Limits, error) {
	own := maps.Clone(mutable)
	maps.DeleteFunc(own, func(key, _ string) bool { return strings.HasPrefix(key, reservedParameters) })
	limits, err := iolimit.Parse(own)
	if err != nil {
		return limits, status.Errorf(codes.InvalidArgument, "mutable_parameters: %v", err)
	}
	if limits.IsZero() {
		return limits, nil
	}
	if err := d.limiter.Supported(); err != nil {
		return limits, status.Errorf(codes.InvalidArgument, "mutable_parameters: %v", err)
	}
	return limits, nil
}

// modify records the limits, then puts them in force. The caller holds the id.
func (d *Driver) modify(id string, limits iolimit.Limits) error {
	it, err := d.volume(id)
	if err != nil {
		return err
	}
	if it.Limits != limits {
		changed := it.metadata
		changed.Limits = limits
		if err := writeMetadata(d.store.dir(id), changed); err != nil {
			return fmt.Errorf("record the limits of volume %q: %w", id, err)
		}
		d.logger.Info("modified volume", "volume", id, "limits", limits)
	}
	device, err := d.loops.findAny(d.store.image(id))
	if err != nil || device == nil {
		return err // they come into force when it is attached
	}
	return d.limitDevice(id, device, limits)
}

// limitDevice puts the limits of a volume in force, and removes those of another volume that had the device before.
func (d *Driver) limitDevice(id string, device *loop, limits iolimit.Limits) error {
	err := d.limiter.Apply(iolimit.Device{Major: loopMajor, Minor: uint32(device.number)}, limits)
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "volume %q has %s: %v", id, limits, err)
	}
	return nil
}

// limitAttached puts the limits of all attached volumes in force again: with cgroup v1 an earlier process may have missed new
// cgroups.
func (d *Driver) limitAttached() {
	volumes, err := d.store.list(d.store.volumes())
	if err != nil && !errors.Is(err, os.ErrNotExist) { // the driver with the controller service may not have made it yet
		d.logger.Error("failed to find the volumes whose I/O is limited", "error", err)
	}
	for _, v := range volumes {
		if v.Limits.IsZero() {
			continue
		}
		device, err := d.loops.find(d.store.image(v.id))
		if err == nil && device != nil {
			err = d.limitDevice(v.id, device, v.Limits)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			d.logger.Error("failed to limit the I/O of a volume", "volume", v.id, "limits", v.Limits, "error", err)
		}
	}
}

// unlimit removes the limits of a device that was detached: the next volume may have the same one.
func (d *Driver) unlimit(device *loop) {
	if err := d.limiter.Apply(iolimit.Device{Major: loopMajor, Minor: uint32(device.number)}, iolimit.Limits{}); err != nil {
		d.logger.Warn("failed to remove the I/O limits of a device; the next volume that gets it removes them",
			"device", device.path, "error", err)
	}
}
