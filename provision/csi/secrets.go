package csi

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	annDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	annDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	annModifySecretName        = "volume.kubernetes.io/controller-modify-secret-name"
	annModifySecretNamespace   = "volume.kubernetes.io/controller-modify-secret-namespace"
)

// The purposes of the secrets in the parameters of a StorageClass.
const (
	secretProvision         = "provisioner"
	secretControllerPublish = "controller-publish"
	secretNodeStage         = "node-stage"
	secretNodePublish       = "node-publish"
	secretControllerExpand  = "controller-expand"
	secretNodeExpand        = "node-expand"
	secretControllerModify  = "controller-modify"
)

// secretParameters are the parameters that name the secret of one purpose.
type secretParameters struct{ name, namespace string }

func newSecretParameters(prefix string) secretParameters {
	return secretParameters{reservedPrefix + prefix + "secret-name", reservedPrefix + prefix + "secret-namespace"}
}

// defaultSecret is the secret of all purposes without parameters of their own.
var defaultSecret = newSecretParameters("")

// secretPurposes has the parameters of each purpose: the current ones, and then those of the first versions of CSI, if there
// were any.
var secretPurposes = map[string][]secretParameters{
	secretProvision: {newSecretParameters("provisioner-"), {"csiProvisionerSecretName", "csiProvisionerSecretNamespace"}},
	secretControllerPublish: {newSecretParameters("controller-publish-"),
		{"csiControllerPublishSecretName", "csiControllerPublishSecretNamespace"}},
	secretNodeStage:        {newSecretParameters("node-stage-"), {"csiNodeStageSecretName", "csiNodeStageSecretNamespace"}},
	secretNodePublish:      {newSecretParameters("node-publish-"), {"csiNodePublishSecretName", "csiNodePublishSecretNamespace"}},
	secretControllerExpand: {newSecretParameters("controller-expand-")},
	secretNodeExpand:       {newSecretParameters("node-expand-")},
	secretControllerModify: {newSecretParameters("controller-modify-")},
}

// secretRefs are the secrets of a volume by purpose.
type secretRefs map[string]*corev1.SecretReference

// isSecretParameter returns whether a parameter names a secret, and is not passed to the driver.
func isSecretParameter(key string) bool {
	has := func(p secretParameters) bool { return key == p.name || key == p.namespace }
	for _, parameters := range secretPurposes {
		if has(parameters[0]) {
			return true
		}
	}
	return has(defaultSecret)
}

// secretTemplate is the secret of one purpose before its tokens are replaced, with the parameters that it is from.
type secretTemplate struct {
	secretParameters
	nameValue, namespaceValue string
}

// templateOf returns the secret that one of several pairs of parameters names, nil if none does.
func templateOf(parameters map[string]string, pairs ...secretParameters) (*secretTemplate, error) {
	var found *secretTemplate
	for _, pair := range pairs {
		name, hasName := parameters[pair.name]
		namespace, hasNamespace := parameters[pair.namespace]
		switch {
		case !hasName && !hasNamespace:
			continue
		case hasName != hasNamespace:
			return nil, fmt.Errorf("StorageClass parameters %q and %q must be given together", pair.name, pair.namespace)
		case found != nil:
			return nil, fmt.Errorf("StorageClass parameters %q and %q are the same; set only one", found.name, pair.name)
		}
		found = &secretTemplate{pair, name, namespace}
	}
	return found, nil
}

// resolveSecrets returns the secrets that the StorageClass names for this claim, of which only the names and the annotations are
// read. What has no secret of its own gets the default one.
func resolveSecrets(parameters map[string]string, volume string, claim *corev1.PersistentVolumeClaim) (secretRefs, error) {
	byDefault, err := templateOf(parameters, defaultSecret)
	if err != nil {
		return nil, err
	}
	refs := secretRefs{}
	for _, purpose := range slices.Sorted(maps.Keys(secretPurposes)) { // so that the same class always fails with the same error
		template, err := templateOf(parameters, secretPurposes[purpose]...)
		if err != nil {
			return nil, err
		}
		if template == nil {
			template = byDefault
		}
		if template == nil {
			continue
		}
		if refs[purpose], err = template.expand(volume, claim); err != nil {
			return nil, err
		}
	}
	return refs, nil
}

// expand returns the secret for a volume and its claim.
func (t *secretTemplate) expand(volume string, claim *corev1.PersistentVolumeClaim) (*corev1.SecretReference, error) {
	tokens := map[string]string{"pv.name": volume, "pvc.namespace": claim.Namespace}
	namespace, err := expandTokens(t.namespace, t.namespaceValue, tokens)
	if err != nil {
		return nil, err
	}
	// The class may let the author of a claim choose the secret's name, but never its namespace.
	tokens["pvc.name"] = claim.Name
	for key, value := range claim.Annotations {
		tokens["pvc.annotations['"+key+"']"] = value
	}
	name, err := expandTokens(t.name, t.nameValue, tokens)
	if err != nil {
		return nil, err
	}
	return &corev1.SecretReference{Namespace: namespace, Name: name}, nil
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
	if strings.HasSuffix(strings.ToLower(key), "namespace") {
		check = validation.IsDNS1123Label
	}
	if wrong := check(resolved); len(wrong) > 0 {
		return "", fmt.Errorf("StorageClass parameter %q: %q expands to %q: %s",
			key, value, resolved, strings.Join(wrong, "; "))
	}
	return resolved, nil
}

// deletionSecret returns the secret with which the volume was provisioned, nil if none. A volume that does not say was made by
// hand, or by an old version of external-provisioner: then it is the one that its class names now.
func (p *Provisioner) deletionSecret(ctx context.Context, volume *corev1.PersistentVolume) (*corev1.SecretReference, error) {
	name, hasName := volume.Annotations[annDeletionSecretName]
	namespace, hasNamespace := volume.Annotations[annDeletionSecretNamespace]
	claim := volume.Spec.ClaimRef
	switch {
	case hasName && hasNamespace && name != "" && namespace != "":
		return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
	case hasName && hasNamespace, volume.Spec.StorageClassName == "", claim == nil:
		return nil, nil
	}
	class, err := p.client.StorageV1().StorageClasses().Get(ctx, volume.Spec.StorageClassName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get the StorageClass %q, which may name a secret: %w", volume.Spec.StorageClassName, err)
	}
	template, err := templateOf(class.Parameters, secretPurposes[secretProvision]...)
	if err == nil && template == nil {
		template, err = templateOf(class.Parameters, defaultSecret)
	}
	if err != nil || template == nil {
		return nil, err
	}
	return template.expand(volume.Name, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name}})
}

// modifySecret returns the secret with which the volume is modified, nil if none: without one of its own the one for its
// expansion, as with external-resizer.
func modifySecret(volume *corev1.PersistentVolume) *corev1.SecretReference {
	ref := &corev1.SecretReference{
		Name: volume.Annotations[annModifySecretName], Namespace: volume.Annotations[annModifySecretNamespace],
	}
	if ref.Name == "" || ref.Namespace == "" {
		return volume.Spec.CSI.ControllerExpandSecretRef
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
