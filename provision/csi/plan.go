package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/csimode"
	"github.com/berth-dev/berth/provision"
)

const (
	// reservedPrefix is that of the parameters that are not passed to the driver.
	reservedPrefix = "csi.storage.k8s.io/"

	paramFSType = reservedPrefix + "fstype"
	// paramOldFSType, in upper or lower case, is the deprecated name of paramFSType.
	paramOldFSType = "fstype"

	metaClaimName      = reservedPrefix + "pvc/name"
	metaClaimNamespace = reservedPrefix + "pvc/namespace"
	metaVolumeName     = reservedPrefix + "pv/name"
)

// plan is all that is known about a volume before the driver is called.
type plan struct {
	options provision.VolumeOptions
	request *csiapi.CreateVolumeRequest
	refs    secretRefs
	fsType  string
	block   bool
	// topology: the driver has one, so that its volumes may be restricted to some nodes.
	topology bool
	size     int64
	// cloned is the claim that the volume is cloned from; nil if it is not.
	cloned *corev1.PersistentVolumeClaim
}

func (p *Provisioner) plan(ctx context.Context, capabilities *capabilities, options provision.VolumeOptions) (*plan, error) {
	claim := options.PVC
	fail := func(err error) (*plan, error) {
		var ignored *provision.IgnoredError
		if errors.As(err, &ignored) {
			return nil, err
		}
		return nil, fmt.Errorf("claim %q: %w", claim.Namespace+"/"+claim.Name, err)
	}
	if !capabilities.rpc[csiapi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME] {
		return fail(fmt.Errorf("driver %q does not support creating volumes", p.config.Name))
	}
	if claim.Spec.Selector != nil {
		return fail(infeasible(errors.New("spec.selector: not supported for provisioned volumes")))
	}
	parameters, fsType, err := splitParameters(options.Parameters)
	if err != nil {
		return fail(infeasible(err))
	}
	next := &plan{options: options, fsType: fsType, topology: capabilities.topology}
	next.block = claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
	switch {
	case next.block:
		next.fsType = "" // a class may be used for both modes
	case fsType == "":
		next.fsType = p.config.DefaultFSType
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	next.size = size.Value()
	if p.config.ExtraCreateMetadata {
		parameters[metaClaimName], parameters[metaClaimNamespace] = claim.Name, claim.Namespace
		parameters[metaVolumeName] = options.PVName
	}
	next.request = next.baseRequest(capabilities, parameters)
	if next.refs, err = resolveSecrets(options.Parameters, options.PVName, claim); err != nil {
		return fail(infeasible(err))
	}
	if next.request.Secrets, err = p.readSecret(ctx, next.refs[secretProvision]); err != nil {
		return fail(err)
	}
	if next.request.VolumeContentSource, next.cloned, err = p.source(ctx, capabilities, options); err != nil {
		return fail(err)
	}
	if next.request.MutableParameters, err = p.mutableParameters(ctx, capabilities, claim); err != nil {
		return fail(err)
	}
	if capabilities.topology {
		if next.request.AccessibilityRequirements, err = p.requirements(ctx, options); err != nil {
			return fail(err)
		}
	}
	return next, nil
}

// baseRequest returns the request without what is read from the API.
func (m *plan) baseRequest(capabilities *capabilities, parameters map[string]string) *csiapi.CreateVolumeRequest {
	request := &csiapi.CreateVolumeRequest{
		Name: m.options.PVName, Parameters: parameters,
		CapacityRange:      &csiapi.CapacityRange{RequiredBytes: m.size},
		VolumeCapabilities: m.volumeCapabilities(capabilities),
	}
	if limit, ok := m.options.PVC.Spec.Resources.Limits[corev1.ResourceStorage]; ok {
		request.CapacityRange.LimitBytes = limit.Value()
	}
	return request
}

// splitParameters separates the driver's parameters from the reserved ones. The driver gets deprecated parameters too, as from
// external-provisioner: some drivers read the file system's type from them.
func splitParameters(all map[string]string) (forDriver map[string]string, fsType string, err error) {
	forDriver = map[string]string{}
	named := 0
	for key, value := range all {
		if key == paramFSType || strings.EqualFold(key, paramOldFSType) {
			fsType = value
			named++
		}
		switch {
		case key == paramFSType, isSecretParameter(key):
		case strings.HasPrefix(key, reservedPrefix):
			return nil, "", fmt.Errorf("unknown StorageClass parameter %q; the prefix %q is reserved", key, reservedPrefix)
		default:
			forDriver[key] = value
		}
	}
	if named > 1 {
		return nil, "", fmt.Errorf("StorageClass parameters %q and %q are the same; set only one", paramFSType, paramOldFSType)
	}
	return forDriver, fsType, nil
}

func (m *plan) volumeCapabilities(capabilities *capabilities) []*csiapi.VolumeCapability {
	var list []*csiapi.VolumeCapability
	single := capabilities.rpc[csiapi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	for _, mode := range m.options.PVC.Spec.AccessModes {
		capability := &csiapi.VolumeCapability{
			AccessMode: &csiapi.VolumeCapability_AccessMode{Mode: csimode.Of(mode, single)},
		}
		if m.block {
			capability.AccessType = &csiapi.VolumeCapability_Block{Block: &csiapi.VolumeCapability_BlockVolume{}}
		} else {
			capability.AccessType = &csiapi.VolumeCapability_Mount{Mount: &csiapi.VolumeCapability_MountVolume{
				FsType: m.fsType, MountFlags: m.options.MountOptions,
			}}
		}
		list = append(list, capability)
	}
	return list
}

// mutableParameters returns those of the claim's VolumeAttributesClass.
func (p *Provisioner) mutableParameters(
	ctx context.Context, capabilities *capabilities, claim *corev1.PersistentVolumeClaim,
) (map[string]string, error) {
	name := claim.Spec.VolumeAttributesClassName
	if name == nil || *name == "" {
		return nil, nil
	}
	if !capabilities.rpc[csiapi.ControllerServiceCapability_RPC_MODIFY_VOLUME] {
		return nil, fmt.Errorf("spec.volumeAttributesClassName: driver %q does not support it", p.config.Name)
	}
	class, err := p.client.StorageV1().VolumeAttributesClasses().Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("spec.volumeAttributesClassName: %w", err)
	}
	if class.DriverName != p.config.Name {
		return nil, fmt.Errorf("spec.volumeAttributesClassName: class %q is of driver %q, not %q",
			*name, class.DriverName, p.config.Name)
	}
	return class.Parameters, nil
}

// validate returns an error if the volume is not as requested.
func (m *plan) validate(created *csiapi.Volume) error {
	switch {
	case created.GetVolumeId() == "":
		return errors.New("the driver returned a volume without an id")
	case created.GetCapacityBytes() != 0 && created.GetCapacityBytes() < m.size:
		return fmt.Errorf("the driver created %d bytes instead of %d", created.GetCapacityBytes(), m.size)
	case m.request.GetVolumeContentSource() != nil && created.GetContentSource() == nil:
		return errors.New("the driver created an empty volume instead of a copy")
	}
	return nil
}

// volume returns the PersistentVolume of the volume that the driver created.
func (m *plan) volume(driver string, created *csiapi.Volume) *corev1.PersistentVolume {
	claim := m.options.PVC
	capacity := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if bytes := created.GetCapacityBytes(); bytes != 0 && bytes != capacity.Value() {
		capacity = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	mode := corev1.PersistentVolumeFilesystem
	if m.block {
		mode = corev1.PersistentVolumeBlock
	}
	source := &corev1.CSIPersistentVolumeSource{
		Driver: driver, VolumeHandle: created.GetVolumeId(), FSType: m.fsType,
		VolumeAttributes:           maps.Clone(created.GetVolumeContext()),
		ControllerPublishSecretRef: m.refs[secretControllerPublish],
		NodeStageSecretRef:         m.refs[secretNodeStage],
		NodePublishSecretRef:       m.refs[secretNodePublish],
		ControllerExpandSecretRef:  m.refs[secretControllerExpand],
		NodeExpandSecretRef:        m.refs[secretNodeExpand],
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: m.options.PVName},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: m.options.PersistentVolumeReclaimPolicy,
			AccessModes:                   claim.Spec.AccessModes,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: capacity},
			VolumeMode:                    &mode,
			MountOptions:                  m.options.MountOptions,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: source},
		},
	}
	if m.topology { // otherwise no node has the labels
		volume.Spec.NodeAffinity = nodeAffinity(created.GetAccessibleTopology())
	}
	if name := claim.Spec.VolumeAttributesClassName; name != nil && *name != "" {
		volume.Spec.VolumeAttributesClassName = name
	}
	volume.Annotations = m.secretAnnotations()
	return volume
}

// secretAnnotations returns the annotations with the secrets that a PersistentVolume has no fields for. Without a secret for the
// deletion they say that there is none: the class may name one later.
func (m *plan) secretAnnotations() map[string]string {
	annotations := map[string]string{annDeletionSecretName: "", annDeletionSecretNamespace: ""}
	if ref := m.refs[secretProvision]; ref != nil {
		annotations[annDeletionSecretName], annotations[annDeletionSecretNamespace] = ref.Name, ref.Namespace
	}
	if ref := m.refs[secretControllerModify]; ref != nil {
		annotations[annModifySecretName], annotations[annModifySecretNamespace] = ref.Name, ref.Namespace
	}
	return annotations
}
