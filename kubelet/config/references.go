package config

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// ErrReference rejects a static Pod that needs other objects: the node may start it before, or without, the API server
// that has them.
var ErrReference = errors.New("a static pod may not refer to objects of the API server")

// references rejects a static Pod that refers to objects of the API server, volumes excepted.
func references(spec *corev1.PodSpec) error {
	reject := func(field string) error { return fmt.Errorf("%s: %w", field, ErrReference) }
	switch {
	case spec.ServiceAccountName != "" || spec.DeprecatedServiceAccount != "":
		return reject("spec.serviceAccountName")
	case len(spec.ImagePullSecrets) > 0:
		return reject("spec.imagePullSecrets")
	case len(spec.ResourceClaims) > 0:
		return reject("spec.resourceClaims")
	}
	for list, containers := range map[string][]corev1.Container{
		"initContainers": spec.InitContainers, "containers": spec.Containers,
	} {
		for i := range containers {
			if field := environmentReference(&containers[i]); field != "" {
				return reject(fmt.Sprintf("spec.%s[%d].%s", list, i, field))
			}
		}
	}
	return nil
}

func environmentReference(c *corev1.Container) string {
	for i, from := range c.EnvFrom {
		if from.ConfigMapRef != nil || from.SecretRef != nil {
			return fmt.Sprintf("envFrom[%d]", i)
		}
	}
	for i, env := range c.Env {
		if env.ValueFrom != nil && (env.ValueFrom.ConfigMapKeyRef != nil || env.ValueFrom.SecretKeyRef != nil) {
			return fmt.Sprintf("env[%d].valueFrom", i)
		}
	}
	return ""
}

// apiSource returns the field of a volume that needs the API server, and an error, if it does.
func apiSource(v *corev1.Volume) (string, error) {
	for name, set := range map[string]bool{
		"secret": v.Secret != nil, "configMap": v.ConfigMap != nil, "ephemeral": v.Ephemeral != nil,
		"persistentVolumeClaim": v.PersistentVolumeClaim != nil,
		"csi":                   v.CSI != nil && v.CSI.NodePublishSecretRef != nil,
	} {
		if set {
			return name, ErrReference
		}
	}
	if v.Projected == nil {
		return "", nil
	}
	for i, source := range v.Projected.Sources {
		if source.DownwardAPI == nil {
			return fmt.Sprintf("projected.sources[%d]", i), ErrReference
		}
	}
	return "", nil
}
