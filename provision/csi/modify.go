package csi

import (
	"context"
	"maps"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/csierr"
	"github.com/berth-dev/berth/provision/modify"
)

var _ modify.Driver = (*Provisioner)(nil)

// SupportsModify implements modify.Driver.
func (p *Provisioner) SupportsModify(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	capabilities, _, err := p.driver.controller(ctx)
	if err != nil {
		return false, err
	}
	return capabilities.rpc[csiapi.ControllerServiceCapability_RPC_MODIFY_VOLUME], nil
}

// ModifyVolume implements modify.Driver by ControllerModifyVolume.
func (p *Provisioner) ModifyVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	parameters map[string]string,
) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	_, client, err := p.driver.controller(ctx)
	if err != nil {
		return err
	}
	if p.config.ExtraCreateMetadata {
		parameters = maps.Clone(parameters)
		if parameters == nil {
			parameters = map[string]string{}
		}
		parameters[metaClaimName], parameters[metaClaimNamespace], parameters[metaVolumeName] = claim.Name, claim.Namespace, pv.Name
	}
	secrets, err := p.readSecret(ctx, modifySecret(pv))
	if err != nil {
		return notSent(err)
	}
	_, err = client.ControllerModifyVolume(ctx, &csiapi.ControllerModifyVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, MutableParameters: parameters, Secrets: secrets})
	return csierr.Classify(ctx, err)
}
