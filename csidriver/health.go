package csidriver

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetVolumeHealth implements csi.NodeServer: it reports a filesystem that the kernel found errors in or does not write to any more. A
// volume whose image is missing does not exist (NotFound).
func (d *Driver) NodeGetVolumeHealth(_ context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	id := req.GetVolumeId()
	if id == "" {
		return nil, missingField("volume_id")
	}
	it, err := d.volume(id)
	if err != nil {
		return nil, err
	}
	health := &csi.VolumeHealth{VolumeId: it.id}
	report := func(kind csi.VolumeHealthErrorType, reason, format string, args ...any) {
		health.HealthStatuses = append(health.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: kind, Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
	path := req.GetVolumePublishPath()
	if path == "" {
		return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
	}
	device, at, err := d.mounted(id, path, true)
	if status.Code(err) == codes.NotFound {
		return nil, err
	}
	if err != nil {
		return nil, grpcError(err)
	}
	if at != nil && device.isFilesystemMount(at) {
		checkFilesystem(device, at, report)
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

// checkFilesystem reports what the kernel knows to be wrong with a mounted filesystem.
func checkFilesystem(device *loop, at *mountinfo.Info, report func(kind csi.VolumeHealthErrorType, reason, format string, args ...any)) {
	// Only ext4 counts errors.
	count, err := os.ReadFile(fmt.Sprintf("/sys/fs/ext4/loop%d/errors_count", device.number))
	if errors := strings.TrimSpace(string(count)); err == nil && errors != "0" {
		report(csi.VolumeHealthErrorType_DATA_LOSS, "FilesystemErrors",
			"the kernel found %s errors in the filesystem on %s (see dmesg): delete the Pods that use it, and it is checked when it is mounted again",
			errors, device.path)
	}
	if !device.readonly && slices.Contains(strings.Split(at.VFSOptions, ","), "ro") {
		report(csi.VolumeHealthErrorType_DEGRADED, "FilesystemReadOnly",
			"the kernel does not write to the filesystem on %s any more (see dmesg): delete the Pods that use it, and it is checked when it is mounted again",
			device.path)
	}
}
