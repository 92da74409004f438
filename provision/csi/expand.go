package csi

import (
	"context"
	"fmt"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/csierr"
	"github.com/berth-dev/berth/internal/csimode"
	"github.com/berth-dev/berth/provision/resize"
)

var _ resize.Driver = (*Provisioner)(nil)

// Abilities implements resize.Driver. The node service counts only if the controller service does not expand volumes,
// and if it is served on the same socket.
func (p *Provisioner) Capabilities(ctx context.Context) (resize.Capabilities, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	capabilities, _, err := p.driver.controller(ctx)
	if err != nil || capabilities.rpc[csiapi.ControllerServiceCapability_RPC_EXPAND_VOLUME] {
		return resize.Capabilities{Controller: err == nil}, err
	}
	conn, err := p.driver.connect()
	if err != nil {
		return resize.Capabilities{}, err
	}
	node, err := nodeExpands(ctx, csiapi.NewNodeClient(conn))
	return resize.Capabilities{Node: node}, err
}

// ExpandVolume implements resize.Driver by ControllerExpandVolume.
func (p *Provisioner) ExpandVolume(ctx context.Context, pv *corev1.PersistentVolume, size int64) (resize.ExpandResult, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	capabilities, client, err := p.driver.controller(ctx)
	if err != nil {
		return resize.ExpandResult{}, err
	}
	source := pv.Spec.CSI
	request := &csiapi.ControllerExpandVolumeRequest{
		VolumeId: source.VolumeHandle, CapacityRange: &csiapi.CapacityRange{RequiredBytes: size},
		VolumeCapability: csimode.Capability(pv, capabilities.rpc[csiapi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]),
	}
	if request.Secrets, err = p.readSecret(ctx, source.ControllerExpandSecretRef); err != nil {
		return resize.ExpandResult{}, err
	}
	resp, err := client.ControllerExpandVolume(ctx, request)
	if err := csierr.Classify(ctx, err); err != nil {
		return resize.ExpandResult{}, err
	}
	return resize.ExpandResult{Capacity: resp.GetCapacityBytes(), NodeExpansionRequired: resp.GetNodeExpansionRequired()}, nil
}

// nodeExpands returns whether the node service expands volumes; false if it is not served on this socket.
func nodeExpands(ctx context.Context, client csiapi.NodeClient) (bool, error) {
	resp, err := client.NodeGetCapabilities(ctx, &csiapi.NodeGetCapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get node capabilities: %w", err)
	}
	for _, c := range resp.GetCapabilities() {
		if c.GetRpc().GetType() == csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME {
			return true, nil
		}
	}
	return false, nil
}
