package objects

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// References returns the Secrets and ConfigMaps that the Pod refers to: in its volumes, in the environment of its
// containers, and for pulling its images.
func References(pod *corev1.Pod) map[Ref]struct{} {
	refs := make(map[Ref]struct{})
	add := func(kind Kind, name string) {
		if name != "" {
			refs[Ref{Kind: kind, Namespace: pod.Namespace, Name: name}] = struct{}{}
		}
	}
	for _, secret := range pod.Spec.ImagePullSecrets {
		add(KindSecret, secret.Name)
	}
	for i := range pod.Spec.Volumes {
		addVolumeRefs(&pod.Spec.Volumes[i], add)
	}
	for container := range podutil.Containers(&pod.Spec) {
		addEnvRefs(container, add)
	}
	return refs
}

func addVolumeRefs(volume *corev1.Volume, add func(Kind, string)) {
	switch {
	case volume.Secret != nil:
		add(KindSecret, volume.Secret.SecretName)
	case volume.ConfigMap != nil:
		add(KindConfigMap, volume.ConfigMap.Name)
	case volume.CSI != nil && volume.CSI.NodePublishSecretRef != nil:
		add(KindSecret, volume.CSI.NodePublishSecretRef.Name)
	case volume.Projected != nil:
		for _, source := range volume.Projected.Sources {
			if source.Secret != nil {
				add(KindSecret, source.Secret.Name)
			}
			if source.ConfigMap != nil {
				add(KindConfigMap, source.ConfigMap.Name)
			}
		}
	}
}

func addEnvRefs(container *corev1.Container, add func(Kind, string)) {
	for _, source := range container.EnvFrom {
		if source.SecretRef != nil {
			add(KindSecret, source.SecretRef.Name)
		}
		if source.ConfigMapRef != nil {
			add(KindConfigMap, source.ConfigMapRef.Name)
		}
	}
	for _, variable := range container.Env {
		if variable.ValueFrom == nil {
			continue
		}
		if ref := variable.ValueFrom.SecretKeyRef; ref != nil {
			add(KindSecret, ref.Name)
		}
		if ref := variable.ValueFrom.ConfigMapKeyRef; ref != nil {
			add(KindConfigMap, ref.Name)
		}
	}
}
