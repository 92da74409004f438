package csidriver

import (
	"context"
	"errors"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reservedParameters is the prefix of the parameters that Kubernetes adds; they change nothing.
const reservedParameters = "csi.storage.k8s.io/"

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, rpc := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: rpc}},
		})
	}
	return resp, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(
	_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if req.GetVolumeId() == "" {
		return nil, missingField("volume_id")
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, missingField("volume_capabilities")
	}
	if _, err := d.volume(req.GetVolumeId()); err != nil {
		return nil, err
	}
	for _, capability := range req.GetVolumeCapabilities() {
		if err := checkCapability(capability); err != nil {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
		}
	}
	if _, err := d.parseParameters(req.GetParameters()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	if _, err := d.parseLimits(req.GetMutableParameters()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(),
			Parameters: req.GetParameters(), MutableParameters: req.GetMutableParameters(),
		},
	}, nil
}

// volume returns the volume of that id or a NotFound.
func (d *Driver) volume(id string) (*item, error) {
	if !isVolumeID(id) {
		return nil, status.Errorf(codes.NotFound, "volume %q %v", id, errNotFound)
	}
	it, err := d.store.get(id)
	if err != nil {
		return nil, grpcError(err)
	}
	return it, nil
}

// grpcError returns the gRPC error of an error of the store.
func grpcError(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, errNotFound):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, errNoSpace):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.Aborted, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

func missingField(field string) error {
	return status.Errorf(codes.InvalidArgument, "%s is missing", field)
}

// checkCapability refuses what a disk of one machine cannot do.
func checkCapability(capability *csi.VolumeCapability) error {
	switch mode := capability.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	default:
		return status.Errorf(codes.InvalidArgument,
			"volume_capability.access_mode: %v is not supported: the volume is on one node", mode)
	}
	switch {
	case capability.GetBlock() != nil:
	case capability.GetMount() == nil:
		return missingField("volume_capability.access_type")
	case capability.GetMount().GetFsType() != "":
		return checkFSType(capability.GetMount().GetFsType())
	}
	return nil
}

// checkSnapshotParameters rejects the parameters of a VolumeSnapshotClass: there are none.
func checkSnapshotParameters(parameters map[string]string) error {
	for key := range parameters {
		if !strings.HasPrefix(key, reservedParameters) {
			return status.Errorf(codes.InvalidArgument, "parameters: %q is not supported", key)
		}
	}
	return nil
}

// topology is where all volumes of this driver are; nothing says everywhere.
func (d *Driver) topology() []*csi.Topology {
	if d.config.Shared {
		return nil
	}
	return []*csi.Topology{{Segments: map[string]string{TopologyKey: d.config.NodeID}}}
}

// includesThisNode reports whether the topology includes this node. Segments that are not ours do not matter.
func (d *Driver) includesThisNode(topology *csi.Topology) bool {
	node, ok := topology.GetSegments()[TopologyKey]
	return !ok || d.config.Shared || node == d.config.NodeID
}

func (d *Driver) checkTopology(req *csi.TopologyRequirement) error {
	candidates := req.GetRequisite()
	if len(candidates) == 0 {
		candidates = req.GetPreferred()
	}
	for _, topology := range candidates {
		if d.includesThisNode(topology) {
			return nil
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted,
		"accessibility_requirements: none includes %s=%s, where this driver's disks are", TopologyKey, d.config.NodeID)
}
