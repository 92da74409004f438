package attacher

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// publishes reports whether the driver has anything to do for a volume before a node uses it. A CSIDriver object that asks
// for attachment, or the lack of one, makes Kubernetes wait for a VolumeAttachment also with a driver that has not.
func (a *Attacher) publishes(ctx context.Context) (bool, error) {
	return a.can(ctx, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
}

// can reports whether the driver has all of the capabilities. It asks the driver each time: it may have been replaced by
// another version. A driver without a controller service has none.
func (a *Attacher) can(ctx context.Context, wanted ...csi.ControllerServiceCapability_RPC_Type) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, a.config.Timeout)
	defer cancel()
	response, err := a.deps.Driver.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get the driver's capabilities: %w", err)
	}
	for _, want := range wanted {
		if !slices.ContainsFunc(response.GetCapabilities(), func(c *csi.ControllerServiceCapability) bool {
			return c.GetRpc().GetType() == want
		}) {
			return false, nil
		}
	}
	return true, nil
}
