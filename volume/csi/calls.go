package csi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/csierr"
	"github.com/berth-dev/berth/internal/csimode"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/selinux"
)

// tokensKey is the key of the tokens that a driver's CSIDriver requests.
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// isUncertainStatus reports whether a failed call may have taken effect, now or later. ResourceExhausted is one of
// these codes because gRPC clients also use it for a response that is too large to read.
func isUncertainStatus(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.ResourceExhausted:
		return true
	case codes.Internal:
		// The response cannot be decoded. Only the text distinguishes that from an Internal error of the driver.
		return strings.Contains(err.Error(), "failed to unmarshal")
	}
	return false
}

// maxErrorLength is the longest part of a driver's error message that is kept: an event holds a kilobyte in all.
const maxErrorLength = 600

// driverError is an error of a driver with a bounded message.
type driverError struct{ err error }

// Error implements error.
func (e driverError) Error() string {
	text := e.err.Error()
	if len(text) > maxErrorLength {
		text = strings.ToValidUTF8(text[:maxErrorLength], "") + "…"
	}
	return text
}

func (e driverError) Unwrap() error { return e.err }

// callDriver makes one call of a driver with a timeout and records it as a stage of the object that ctx belongs to. Its
// error names the driver and the call, with the driver's message as far as it fits into an event.
func callDriver(ctx context.Context, driver, call, volume string, f func(context.Context) error) error {
	span := timeline.Current(ctx).Begin("csi driver "+driver, timeline.StageDriver, call+" "+volume)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := csierr.Classify(ctx, f(ctx))
	if err != nil {
		err = timeline.WithReason(fmt.Errorf("csi driver %s: %s of volume %q: %w", driver, call, volume, driverError{err}),
			"DriverCallFailed", "check the log of the node plugin of driver "+driver+" on this node")
	}
	span.End(err)
	return err
}

// capability words what the volume is to be.
func (s *source) capability(driver *Driver, fsGroup *int64, seLinuxLabel string) *csipb.VolumeCapability {
	capability := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{
		Mode: csimode.Of(s.accessMode, driver.can(csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)),
	}}
	if s.block {
		capability.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return capability
	}
	mount := &csipb.VolumeCapability_MountVolume{FsType: s.fsType, MountFlags: s.mountOptions}
	if seLinuxLabel != "" {
		mount.MountFlags = append(slices.Clone(s.mountOptions), selinux.MountOption(seLinuxLabel))
	}
	if fsGroup != nil && driver.can(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		mount.VolumeMountGroup = fmt.Sprint(*fsGroup)
	}
	capability.AccessType = &csipb.VolumeCapability_Mount{Mount: mount}
	return capability
}

// secrets reads the Secret for a call, nil if there is none.
func (p *Plugin) secrets(
	ctx context.Context, ref *corev1.SecretReference, namespace string,
) (map[string]string, error) {
	if ref == nil || ref.Name == "" {
		return nil, nil
	}
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	secret, err := p.deps.Client.CoreV1().Secrets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read secret %s/%s for the csi driver: %w", namespace, ref.Name, err)
	}
	values := make(map[string]string, len(secret.Data))
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	return values, nil
}

// publishContext returns the attacher's metadata of the device. It is read once until the device is unstaged.
func (p *Plugin) publishContext(ctx context.Context, s *source) (map[string]string, error) {
	device := deviceName(s.driver, s.handle)
	p.mu.Lock()
	metadata, ok := p.publishContexts[device]
	p.mu.Unlock()
	if ok {
		return metadata, nil
	}
	name := AttachmentName(s.handle, s.driver, p.config.NodeName)
	object, err := p.deps.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read volume attachment %q of volume %q: %w", name, s.name, err)
	}
	switch {
	case object.Spec.NodeName != p.config.NodeName || object.Spec.Attacher != s.driver:
		return nil, fmt.Errorf("use volume attachment %q of volume %q: it is for driver %q and node %q", name, s.name,
			object.Spec.Attacher, object.Spec.NodeName)
	case object.DeletionTimestamp != nil:
		return nil, fmt.Errorf("use volume attachment %q of volume %q: it is being detached", name, s.name)
	case !object.Status.Attached:
		return nil, fmt.Errorf("use volume attachment %q of volume %q: it is not attached", name, s.name)
	}
	metadata = object.Status.AttachmentMetadata
	p.mu.Lock()
	p.publishContexts[device] = metadata
	p.mu.Unlock()
	return metadata, nil
}

// forgetPublishContext makes publishContext read the attachment again.
func (p *Plugin) forgetPublishContext(device string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.publishContexts, device)
}

// volumeContext returns the volume's attributes with what the driver's CSIDriver requires. The second map is added to
// the secrets.
func (p *Plugin) volumeContext(
	ctx context.Context, pod *corev1.Pod, s *source, object *storagev1.CSIDriver,
) (attributes, secret map[string]string, err error) {
	attributes = maps.Clone(s.attributes)
	if attributes == nil {
		attributes = make(map[string]string)
	}
	if podInfoOnMount(object) {
		attributes["csi.storage.k8s.io/pod.name"] = pod.Name
		attributes["csi.storage.k8s.io/pod.namespace"] = pod.Namespace
		attributes["csi.storage.k8s.io/pod.uid"] = string(pod.UID)
		attributes["csi.storage.k8s.io/serviceAccount.name"] = pod.Spec.ServiceAccountName
		attributes["csi.storage.k8s.io/ephemeral"] = fmt.Sprint(s.ephemeral)
	}
	if object == nil || len(object.Spec.TokenRequests) == 0 {
		return attributes, nil, nil
	}
	tokens, err := p.tokens(ctx, pod, object.Spec.TokenRequests)
	if err != nil {
		return nil, nil, err
	}
	if tokensInSecrets(object) {
		return attributes, map[string]string{tokensKey: tokens}, nil
	}
	attributes[tokensKey] = tokens
	return attributes, nil, nil
}

// tokens returns a JSON object with a token for each audience.
func (p *Plugin) tokens(ctx context.Context, pod *corev1.Pod, requests []storagev1.TokenRequest) (string, error) {
	statuses := make(map[string]authenticationv1.TokenRequestStatus, len(requests))
	for _, request := range requests {
		token, err := p.deps.Tokens.Token(ctx, pod, &corev1.ServiceAccountTokenProjection{
			Audience: request.Audience, ExpirationSeconds: request.ExpirationSeconds,
		})
		if err != nil {
			return "", fmt.Errorf("get token with audience %q for the csi driver: %w", request.Audience, err)
		}
		expires, err := tokenExpiry(token)
		if err != nil {
			return "", fmt.Errorf("read token with audience %q for the csi driver: %w", request.Audience, err)
		}
		statuses[request.Audience] = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: expires}
	}
	raw, err := json.Marshal(statuses)
	if err != nil {
		return "", fmt.Errorf("encode tokens for the csi driver: %w", err)
	}
	return string(raw), nil
}

// tokenExpiry reads when a token of the API server, a JSON Web Token, expires. It does not verify the signature.
func tokenExpiry(token string) (metav1.Time, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return metav1.Time{}, fmt.Errorf("it has %d parts instead of 3", len(parts))
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return metav1.Time{}, fmt.Errorf("decode its claims: %w", err)
	}
	var claims struct {
		Expires int64 `json:"exp"`
	}
	if err := json.Unmarshal(raw, &claims); err != nil {
		return metav1.Time{}, fmt.Errorf("read its claims: %w", err)
	}
	return metav1.NewTime(time.Unix(claims.Expires, 0).UTC()), nil
}

// classifyError marks the error of a failed call with volume.Uncertain, unless it is certain that the call did nothing
// and nothing was done before.
func classifyError(err error, before, mounted bool) error {
	if before || mounted || isUncertainStatus(err) {
		return volume.Uncertain(err)
	}
	return err
}
