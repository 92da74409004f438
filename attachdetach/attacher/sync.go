package attacher

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/csimode"
	"github.com/berth-dev/berth/reconcile"
)

// reconcile syncs one VolumeAttachment, or releases one PersistentVolume.
func (a *Attacher) reconcile(ctx context.Context, k key) (reconcile.Result, error) {
	if k.volume != "" {
		return reconcile.Result{}, a.releaseVolume(ctx, k.volume)
	}
	return reconcile.Result{}, a.syncAttachment(ctx, k.attachment)
}

// syncAttachment publishes or unpublishes the volume as the VolumeAttachment requires, and writes its status.
func (a *Attacher) syncAttachment(ctx context.Context, name string) error {
	va, err := a.attachments.Get(name)
	if apierrors.IsNotFound(err) {
		a.clearMissing(name)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read volume attachment %q: %w", name, err)
	}
	switch {
	case va.Spec.Attacher != a.config.DriverName:
		return nil
	case va.DeletionTimestamp != nil:
		a.clearMissing(name)
		return a.detach(ctx, va)
	case va.Status.Attached && !a.isMissing(va):
		a.clearMissing(name)
		if va.Status.AttachError == nil {
			return nil
		}
		// A publication that was repeated because the cache was behind has failed.
		return a.patch(ctx, name, map[string]any{"status": map[string]any{"attachError": nil}}, "status")
	}
	if err := a.attach(ctx, va); err != nil {
		return err
	}
	a.clearMissing(name)
	return nil
}

// attach publishes the volume and writes the result into the status, also an error: the attach/detach controller waits for
// either. Where the driver has nothing to publish, the volume counts as attached, as with external-attacher.
func (a *Attacher) attach(ctx context.Context, va *storagev1.VolumeAttachment) error {
	has, err := a.capabilities(ctx)
	if err == nil && !has.publishes() {
		return a.patch(ctx, va.Name, map[string]any{"status": map[string]any{"attached": true, "attachError": nil}}, "status")
	}
	var request *csi.ControllerPublishVolumeRequest
	if err == nil {
		request, err = a.request(ctx, va, has)
	}
	if err == nil {
		va, err = a.prepare(ctx, va, request)
	}
	if apierrors.IsConflict(err) {
		return err // the cache is behind: what it does not show yet may be that the volume is attached, so it is no error of it
	}
	var response *csi.ControllerPublishVolumeResponse
	if err == nil {
		calling, cancel := context.WithTimeout(ctx, a.config.Timeout)
		response, err = a.deps.Driver.ControllerPublishVolume(calling, request)
		cancel()
	}
	if err != nil {
		return a.recordError(ctx, va, "attachError", err, va.Status.Attached)
	}
	return recordAttached(ctx, a.deps.Client, va.Name, response.GetPublishContext())
}

// recordAttached writes into the status that the volume is attached. It is a JSON patch because a merge patch keeps the keys of an
// earlier context that it does not name, and the cache may not have that context yet.
func recordAttached(ctx context.Context, client kubernetes.Interface, name string, publishContext map[string]string) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	return send(ctx, client, name, types.JSONPatchType, []operation{
		{"add", "/status/attached", true}, {"add", "/status/attachmentMetadata", publishContext}, {"add", "/status/attachError", nil},
	}, "status")
}

// prepare adds the finalizer and the annotations, so that the VolumeAttachment outlives the publication and records it.
func (a *Attacher) prepare(
	ctx context.Context, va *storagev1.VolumeAttachment, request *csi.ControllerPublishVolumeRequest,
) (*storagev1.VolumeAttachment, error) {
	if slices.Contains(va.Finalizers, a.finalizer) && va.Annotations[nodeIDAnnotation] == request.NodeId &&
		va.Annotations[handleAnnotation] == request.VolumeId {
		return va, nil
	}
	finalizers := va.Finalizers
	if !slices.Contains(finalizers, a.finalizer) {
		finalizers = append(slices.Clone(finalizers), a.finalizer)
	}
	return va, a.patch(ctx, va.Name, map[string]any{"metadata": map[string]any{
		"resourceVersion": va.ResourceVersion, // fails the patch if the object was deleted or has other finalizers meanwhile
		"finalizers":      finalizers,
		"annotations":     map[string]any{nodeIDAnnotation: request.NodeId, handleAnnotation: request.VolumeId},
	}})
}

// detach unpublishes the volume and removes the finalizer. Without the finalizer nothing was ever published, or it is unpublished
// already and only the finalizer of another controller keeps the VolumeAttachment, whose status then has to be that of a detached one.
func (a *Attacher) detach(ctx context.Context, va *storagev1.VolumeAttachment) error {
	if slices.Contains(va.Finalizers, a.finalizer) {
		if err := a.removePublication(ctx, va); err != nil {
			return err
		}
		if len(va.Finalizers) == 1 {
			return nil // the finalizer was the last one, so the object is deleted
		}
	}
	if !va.Status.Attached && va.Status.DetachError == nil && len(va.Status.AttachmentMetadata) == 0 {
		return nil
	}
	err := a.patch(ctx, va.Name, map[string]any{
		"metadata": map[string]any{"uid": va.UID}, // not an object of that name that has replaced it
		"status":   map[string]any{"attached": false, "attachmentMetadata": nil, "detachError": nil},
	}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// removePublication unpublishes the volume and removes the finalizer, or writes the error into the status.
func (a *Attacher) removePublication(ctx context.Context, va *storagev1.VolumeAttachment) error {
	has, err := a.capabilities(ctx)
	if err == nil && has.publishes() { // otherwise an older version of the driver did, and this one has nothing to undo
		err = a.unpublish(ctx, va)
	}
	if err != nil {
		return a.recordError(ctx, va, "detachError", err, false)
	}
	left := slices.DeleteFunc(slices.Clone(va.Finalizers), func(f string) bool { return f == a.finalizer })
	err = a.patch(ctx, va.Name, map[string]any{"metadata": map[string]any{
		"resourceVersion": va.ResourceVersion, "finalizers": left,
	}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// unpublish calls the driver with what the VolumeAttachment records and, as far as that is missing, with what its PersistentVolume
// and its CSINode say: one that was deleted may have been created again since, for another volume. Without a node the driver would
// unpublish the volume from all of them.
func (a *Attacher) unpublish(ctx context.Context, va *storagev1.VolumeAttachment) error {
	request := &csi.ControllerUnpublishVolumeRequest{
		VolumeId: va.Annotations[handleAnnotation], NodeId: va.Annotations[nodeIDAnnotation],
	}
	source, err := a.source(va)
	switch {
	case err == nil:
		request.VolumeId = cmp.Or(request.VolumeId, source.VolumeHandle)
		request.Secrets, err = a.secrets(ctx, source.ControllerPublishSecretRef)
	case request.VolumeId != "":
		err = nil // the annotations are enough
	}
	if err == nil && request.NodeId == "" {
		request.NodeId, err = a.nodeID(va.Spec.NodeName)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.config.Timeout)
	defer cancel()
	_, err = a.deps.Driver.ControllerUnpublishVolume(ctx, request)
	return err
}

// request returns the request that publishes the volume. Without the capability PUBLISH_READONLY, readonly has to be false.
func (a *Attacher) request(
	ctx context.Context, va *storagev1.VolumeAttachment, has capabilities,
) (*csi.ControllerPublishVolumeRequest, error) {
	source, err := a.source(va)
	if err != nil {
		return nil, err
	}
	if recorded := va.Annotations[handleAnnotation]; recorded != "" && recorded != source.VolumeHandle &&
		slices.Contains(va.Finalizers, a.finalizer) {
		// The record is what is unpublished: an attempt may have published the volume although it failed.
		return nil, fmt.Errorf("persistent volume %q has been created again for volume %q, and volume attachment %q is for volume %q: delete it",
			*va.Spec.Source.PersistentVolumeName, source.VolumeHandle, va.Name, recorded)
	}
	pv, err := a.volumes.Get(*va.Spec.Source.PersistentVolumeName)
	if err != nil {
		return nil, err
	}
	if pv.DeletionTimestamp != nil {
		return nil, fmt.Errorf("persistent volume %q is being deleted, so it is attached to no other node", pv.Name)
	}
	nodeID, err := a.nodeID(va.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	secrets, err := a.secrets(ctx, source.ControllerPublishSecretRef)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeRequest{
		VolumeId: source.VolumeHandle, NodeId: nodeID, Secrets: secrets,
		Readonly:         source.ReadOnly && has[csi.ControllerServiceCapability_RPC_PUBLISH_READONLY],
		VolumeContext:    source.VolumeAttributes,
		VolumeCapability: csimode.Capability(pv, has[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]),
	}, nil
}

// source returns the CSI source of the VolumeAttachment's PersistentVolume.
func (a *Attacher) source(va *storagev1.VolumeAttachment) (*corev1.CSIPersistentVolumeSource, error) {
	if va.Spec.Source.PersistentVolumeName == nil {
		return nil, fmt.Errorf("volume attachment %q is unsupported: field spec.source.persistentVolumeName is not set",
			va.Name)
	}
	pv, err := a.volumes.Get(*va.Spec.Source.PersistentVolumeName)
	if err != nil {
		return nil, fmt.Errorf("read persistent volume of volume attachment %q: %w", va.Name, err)
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != a.config.DriverName {
		return nil, fmt.Errorf("persistent volume %q is not one of driver %q", pv.Name, a.config.DriverName)
	}
	return pv.Spec.CSI, nil
}

// nodeID returns the driver's own name of the node, which the kubelet writes into the CSINode.
func (a *Attacher) nodeID(node string) (string, error) {
	csiNode, err := a.csiNodes.Get(node)
	if err != nil {
		return "", fmt.Errorf("read csi node %q: %w", node, err)
	}
	for _, driver := range csiNode.Spec.Drivers {
		if driver.Name == a.config.DriverName {
			return driver.NodeID, nil
		}
	}
	return "", fmt.Errorf("driver %q is not registered on node %q; check whether it runs there", a.config.DriverName, node)
}

func (a *Attacher) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := a.deps.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read secret %s/%s of field spec.csi.controllerPublishSecretRef: %w",
			ref.Namespace, ref.Name, err)
	}
	values := make(map[string]string, len(secret.Data))
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	return values, nil
}

// recordError writes the error into the status and returns it. lost is set if the volume is not attached any more.
func (a *Attacher) recordError(ctx context.Context, va *storagev1.VolumeAttachment, field string, err error, lost bool) error {
	volumeErr := storagev1.VolumeError{Time: metav1.NewTime(a.deps.Clock.Now()), Message: shorten(err.Error())}
	if code := status.Code(err); code != codes.Unknown { // Unknown: the driver has not responded
		volumeErr.ErrorCode = ptr.To(int32(code))
	}
	change := map[string]any{field: volumeErr}
	if lost {
		change["attached"] = false
	}
	patchErr := a.patch(ctx, va.Name, map[string]any{"status": change}, "status")
	if patchErr != nil && !apierrors.IsNotFound(patchErr) {
		return fmt.Errorf("%w (and the status could not be written: %w)", err, patchErr)
	}
	return err
}

// maxMessage is how many bytes of an error the API server accepts. It refuses a status with a longer one.
const maxMessage = 1024

// shorten returns as much of the message as the API server accepts. What is not UTF-8 would become longer in the patch.
func shorten(message string) string {
	const end = "..."
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage-len(end)], "") + end
}

func (a *Attacher) patch(ctx context.Context, name string, change map[string]any, subresource ...string) error {
	return send(ctx, a.deps.Client, name, types.MergePatchType, change, subresource...)
}

func send(
	ctx context.Context, client kubernetes.Interface, name string, kind types.PatchType, change any, subresource ...string,
) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode patch of volume attachment %q: %w", name, err)
	}
	_, err = client.StorageV1().VolumeAttachments().Patch(ctx, name, kind, patch, metav1.PatchOptions{}, subresource...)
	if err != nil {
		return fmt.Errorf("patch volume attachment %q: %w", name, err)
	}
	return nil
}
