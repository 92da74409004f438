package csi

import (
	"context"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/provision"
)

const (
	annDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	annDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
)

// The purposes of the secrets in the parameters of a StorageClass.
const (
	secretProvision         = "provisioner"
	secretControllerPublish = "controller-publish"
	secretNodeStage         = "node-stage"
	secretNodePublish       = "node-publish"
	secretControllerExpand  = "controller-expand"
	secretNodeExpand        = "node-expand"
)

var secretPurposes = []string{
	secretProvision, secretControllerPublish, secretNodeStage, secretNodePublish, secretControllerExpand, secretNodeExpand,
}

// secretRefs are the secrets of a volume by purpose.
type secretRefs map[string]*corev1.SecretReference

func nameParameter(purpose string) string      { return reservedPrefix + purpose + "-secret-name" }
func namespaceParameter(purpose string) string { return reservedPrefix + purpose + "-secret-namespace" }

func isSecretParameter(key string) bool {
	for _, purpose := range secretPurposes {
		if key == nameParameter(purpose) || key == namespaceParameter(purpose) {
			return true
		}
	}
	return false
}

// resolveSecrets returns the secrets that the StorageClass names for this claim.
func resolveSecrets(options provision.VolumeOptions) (secretRefs, error) {
	refs := secretRefs{}
	for _, purpose := range secretPurposes {
		nameKey, namespaceKey := nameParameter(purpose), namespaceParameter(purpose)
		name, hasName := options.Parameters[nameKey]
		namespace, hasNamespace := options.Parameters[namespaceKey]
		if !hasName && !hasNamespace {
			continue
		}
		if hasName != hasNamespace {
			return nil, fmt.Errorf("StorageClass parameters %q and %q must be given together", nameKey, namespaceKey)
		}
		tokens := map[string]string{"pv.name": options.PVName, "pvc.namespace": options.PVC.Namespace}
		namespace, err := expandTokens(namespaceKey, namespace, tokens)
		if err != nil {
			return nil, err
		}
		// The class may let the author of a claim choose the secret's name, but never its namespace.
		tokens["pvc.name"] = options.PVC.Name
		if purpose != secretProvision {
			for key, value := range options.PVC.Annotations {
				tokens["pvc.annotations['"+key+"']"] = value
			}
		}
		if name, err = expandTokens(nameKey, name, tokens); err != nil {
			return nil, err
		}
		refs[purpose] = &corev1.SecretReference{Namespace: namespace, Name: name}
	}
	return refs, nil
}

// expandTokens replaces the tokens in the parameter's value.
func expandTokens(key, value string, tokens map[string]string) (string, error) {
	var unknown []string
	resolved := os.Expand(value, func(token string) string {
		text, ok := tokens[token]
		if !ok {
			unknown = append(unknown, "${"+token+"}")
		}
		return text
	})
	if len(unknown) > 0 {
		return "", fmt.Errorf("StorageClass parameter %q: unknown token %s", key, strings.Join(unknown, ", "))
	}
	check := validation.IsDNS1123Subdomain
	if strings.HasSuffix(key, "-namespace") {
		check = validation.IsDNS1123Label
	}
	if wrong := check(resolved); len(wrong) > 0 {
		return "", fmt.Errorf("StorageClass parameter %q: %q expands to %q: %s",
			key, value, resolved, strings.Join(wrong, "; "))
	}
	return resolved, nil
}

// deletionSecret returns the secret with which the volume was provisioned, nil if none.
func deletionSecret(volume *corev1.PersistentVolume) *corev1.SecretReference {
	ref := &corev1.SecretReference{
		Name: volume.Annotations[annDeletionSecretName], Namespace: volume.Annotations[annDeletionSecretNamespace],
	}
	if ref.Name == "" || ref.Namespace == "" {
		return nil
	}
	return ref
}

func (p *Provisioner) readSecret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := p.client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get secret %q for the driver: %w", ref.Namespace+"/"+ref.Name, err)
	}
	values := make(map[string]string, len(secret.Data))
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	return values, nil
}
