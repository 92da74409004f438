package attacher

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// capabilities are those of a driver's controller service. Without PUBLISH_UNPUBLISH_VOLUME the driver has nothing to do
// before a node uses a volume; a CSIDriver object that asks for attachment, or the lack of one, makes Kubernetes wait for a
// VolumeAttachment all the same.
type capabilities map[csi.ControllerServiceCapability_RPC_Type]bool

func (c capabilities) publishes() bool {
	return c[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME]
}

// capabilities asks the driver for its capabilities each time: it may have been replaced by another version. A driver without
// a controller service has none.
func (a *Attacher) capabilities(ctx context.Context) (capabilities, error) {
	ctx, cancel := context.WithTimeout(ctx, a.config.Timeout)
	defer cancel()
	response, err := a.deps.Driver.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get the driver's capabilities: %w", err)
	}
	has := capabilities{}
	for _, capability := range response.GetCapabilities() {
		has[capability.GetRpc().GetType()] = true
	}
	return has, nil
}
