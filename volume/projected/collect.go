package projected

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/atomicwriter"
)

// collector gathers the files of one volume.
type collector struct {
	ctx   context.Context
	deps  Deps
	req   volume.Request
	mode  int32
	files map[string]atomicwriter.File
}

// collect gathers the files of all sources; a later source wins over an earlier one. It continues after an error, so
// that the user sees everything that is missing at once.
func (c *collector) collect(sources []corev1.VolumeProjection) error {
	var errs []error
	for i := range sources {
		source := &sources[i]
		var err error
		switch {
		case source.Secret != nil:
			err = c.secret(source.Secret)
		case source.ConfigMap != nil:
			err = c.configMap(source.ConfigMap)
		case source.DownwardAPI != nil:
			err = c.downwardAPI(source.DownwardAPI)
		case source.ServiceAccountToken != nil:
			err = c.token(source.ServiceAccountToken)
		case source.ClusterTrustBundle != nil:
			err = c.trustBundle(source.ClusterTrustBundle)
		case source.PodCertificate != nil:
			err = c.certificate(i, source.PodCertificate)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c *collector) secret(source *corev1.SecretProjection) error {
	optional := source.Optional != nil && *source.Optional
	secret, err := c.deps.Objects.Secret(c.ctx, c.req.Pod.Namespace, source.Name)
	if err != nil {
		if optional && apierrors.IsNotFound(err) {
			return nil
		}
		return c.readError("secret", source.Name, err)
	}
	get := func(key string) ([]byte, bool) { data, ok := secret.Data[key]; return data, ok }
	if len(source.Items) == 0 {
		for key, data := range secret.Data {
			c.add(key, data, nil)
		}
		return nil
	}
	return c.items("secret", source.Name, source.Items, optional, get)
}

func (c *collector) configMap(source *corev1.ConfigMapProjection) error {
	optional := source.Optional != nil && *source.Optional
	object, err := c.deps.Objects.ConfigMap(c.ctx, c.req.Pod.Namespace, source.Name)
	if err != nil {
		if optional && apierrors.IsNotFound(err) {
			return nil
		}
		return c.readError("configmap", source.Name, err)
	}
	if len(source.Items) == 0 {
		for key, data := range object.Data {
			c.add(key, []byte(data), nil)
		}
		for key, data := range object.BinaryData {
			c.add(key, data, nil)
		}
		return nil
	}
	get := func(key string) ([]byte, bool) {
		if data, ok := object.Data[key]; ok {
			return []byte(data), true
		}
		data, ok := object.BinaryData[key]
		return data, ok
	}
	return c.items("configmap", source.Name, source.Items, optional, get)
}

// readError describes why a Secret or ConfigMap was not read. The remedy for a missing one is the user's.
func (c *collector) readError(kind, name string, err error) error {
	object := c.req.Pod.Namespace + "/" + name
	wrapped := fmt.Errorf("get %s %s: %w", kind, object, err)
	if !apierrors.IsNotFound(err) {
		return wrapped
	}
	reason := map[string]string{"secret": "SecretMissing", "configmap": "ConfigMapMissing"}[kind]
	return timeline.WithReason(wrapped, reason, "create "+kind+" "+object+", or mark it as optional in the pod")
}

// items adds the keys that the volume names, each at the path that it names.
func (c *collector) items(
	kind, name string, items []corev1.KeyToPath, optional bool, get func(string) ([]byte, bool),
) error {
	var errs []error
	for _, item := range items {
		data, ok := get(item.Key)
		switch {
		case ok:
			c.add(item.Path, data, item.Mode)
		case !optional:
			errs = append(errs, fmt.Errorf("%s %s/%s references non-existent key %q: add the key or make it optional",
				kind, c.req.Pod.Namespace, name, item.Key))
		}
	}
	return errors.Join(errs...)
}

func (c *collector) downwardAPI(source *corev1.DownwardAPIProjection) error {
	var errs []error
	for i := range source.Items {
		item := &source.Items[i]
		value, err := c.downwardValue(item)
		if err != nil {
			errs = append(errs, fmt.Errorf("create downward API file %q: %w", item.Path, err))
			continue
		}
		c.add(item.Path, []byte(value), item.Mode)
	}
	return errors.Join(errs...)
}

func (c *collector) downwardValue(item *corev1.DownwardAPIVolumeFile) (string, error) {
	switch {
	case item.FieldRef != nil:
		return podField(c.req.Pod, item.FieldRef.FieldPath)
	case item.ResourceFieldRef != nil:
		return containerResource(c.req.Pod, item.ResourceFieldRef, c.deps.NodeAllocatable())
	}
	return "", errors.New("neither fieldRef nor resourceFieldRef is set")
}

// token adds a token. If all containers run as one user, only that user can read it.
func (c *collector) token(source *corev1.ServiceAccountTokenProjection) error {
	token, err := c.deps.Tokens.Token(c.ctx, c.req.Pod, source)
	if err != nil {
		return fmt.Errorf("get token of service account %s/%s: %w", c.req.Pod.Namespace,
			c.req.Pod.Spec.ServiceAccountName, err)
	}
	c.addForUser(source.Path, []byte(token))
	return nil
}

// addForUser adds a file that only the common user of all containers can read, if there is one.
func (c *collector) addForUser(path string, data []byte) {
	user := commonUser(c.req.Pod)
	file := atomicwriter.File{Data: data, Mode: os.FileMode(c.mode), UID: user}
	if user != nil || c.req.FSGroup != nil {
		file.Mode = 0o600
	}
	c.files[path] = file
}

// trustBundle adds the trust anchors of ClusterTrustBundles.
func (c *collector) trustBundle(source *corev1.ClusterTrustBundleProjection) error {
	if c.deps.TrustBundles == nil {
		return CheckSources(c.req.Spec)
	}
	anchors, err := c.deps.TrustBundles.TrustAnchors(c.ctx, c.req.Pod, source)
	if err != nil {
		return fmt.Errorf("get trust anchors for %q: %w", source.Path, err)
	}
	c.addForUser(source.Path, anchors)
	return nil
}

// certificate adds a key and its certificate chain: in one file, in two, or both.
func (c *collector) certificate(index int, source *corev1.PodCertificateProjection) error {
	if c.deps.Certificates == nil {
		return CheckSources(c.req.Spec)
	}
	key, chain, err := c.deps.Certificates.Bundle(c.ctx, c.req.Pod, c.req.Spec.Name, index, source)
	if err != nil {
		return fmt.Errorf("get certificate of pod %s/%s: %w", c.req.Pod.Namespace, c.req.Pod.Name, err)
	}
	for _, file := range []struct {
		path string
		data []byte
	}{
		{source.CredentialBundlePath, slices.Concat(key, chain)}, {source.KeyPath, key}, {source.CertificateChainPath, chain},
	} {
		if file.path != "" {
			c.addForUser(file.path, file.data)
		}
	}
	return nil
}

func (c *collector) add(path string, data []byte, mode *int32) {
	if mode == nil {
		mode = &c.mode
	}
	c.files[path] = atomicwriter.File{Data: data, Mode: os.FileMode(*mode)}
}

// commonUser returns the user that all containers of the Pod run as, nil if they differ or one names no user.
func commonUser(pod *corev1.Pod) *int64 {
	var common *int64
	for container := range podutil.Containers(&pod.Spec) {
		var user *int64
		if pod.Spec.SecurityContext != nil {
			user = pod.Spec.SecurityContext.RunAsUser
		}
		if container.SecurityContext != nil && container.SecurityContext.RunAsUser != nil {
			user = container.SecurityContext.RunAsUser
		}
		if user == nil || common != nil && *common != *user {
			return nil
		}
		common = user
	}
	return common
}
