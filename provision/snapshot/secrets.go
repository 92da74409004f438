package snapshot

import (
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/provision/snapshot/api"
)

// The purposes of the Secrets in the parameters of a VolumeSnapshotClass.
const (
	// SecretSnapshotter is for CreateSnapshot and DeleteSnapshot.
	SecretSnapshotter = "snapshotter"
	// SecretList is for GetSnapshot and ListSnapshots.
	SecretList = "snapshotter-list"
)

// ResolveSecret returns the Secret that a class names for the purpose and for the content of a VolumeSnapshot, nil if none.
func ResolveSecret(class *api.VolumeSnapshotClass, purpose, content string, ref corev1.ObjectReference,
) (*corev1.SecretReference, error) {
	nameKey, namespaceKey := parameterPrefix+purpose+"-secret-name", parameterPrefix+purpose+"-secret-namespace"
	name, hasName := class.Parameters[nameKey]
	namespace, hasNamespace := class.Parameters[namespaceKey]
	switch {
	case !hasName && !hasNamespace:
		return nil, nil
	case hasName != hasNamespace:
		return nil, fmt.Errorf("VolumeSnapshotClass %q: parameters %q and %q must be given together", class.Name, nameKey, namespaceKey)
	}
	tokens := map[string]string{"volumesnapshotcontent.name": content, "volumesnapshot.namespace": ref.Namespace}
	namespace, err := expand(class.Name, namespaceKey, namespace, tokens, validation.IsDNS1123Label)
	if err != nil {
		return nil, err
	}
	tokens["volumesnapshot.name"] = ref.Name // whoever creates a snapshot may choose the Secret's name, never its namespace
	if name, err = expand(class.Name, nameKey, name, tokens, validation.IsDNS1123Subdomain); err != nil {
		return nil, err
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
}

// expand replaces the tokens ${NAME} in the value of a parameter.
func expand(class, key, value string, tokens map[string]string, check func(string) []string) (string, error) {
	var unknown []string
	resolved := os.Expand(value, func(token string) string {
		text, ok := tokens[token]
		if !ok {
			unknown = append(unknown, "${"+token+"}")
		}
		return text
	})
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return "", fmt.Errorf("VolumeSnapshotClass %q: parameter %q: unknown token %s", class, key, strings.Join(unknown, ", "))
	}
	if wrong := check(resolved); len(wrong) > 0 {
		return "", fmt.Errorf("VolumeSnapshotClass %q: parameter %q: %q expands to %q: %s", class, key, value, resolved, strings.Join(wrong, "; "))
	}
	return resolved, nil
}

// DeletionSecret returns the Secret that a content names for DeleteSnapshot, nil if none.
func DeletionSecret(content *api.VolumeSnapshotContent) *corev1.SecretReference {
	ref := &corev1.SecretReference{Name: content.Annotations[AnnDeletionSecretName], Namespace: content.Annotations[AnnDeletionSecretNamespace]}
	if ref.Name == "" || ref.Namespace == "" {
		return nil
	}
	return ref
}
