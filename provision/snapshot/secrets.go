package snapshot

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
)

// The purposes of the Secrets in the parameters of a VolumeSnapshotClass.
const (
	// SecretSnapshotter is for CreateSnapshot and DeleteSnapshot.
	SecretSnapshotter = "snapshotter"
	// SecretList is for GetSnapshot and ListSnapshots.
	SecretList = "snapshotter-list"
)

// secretParameters returns the parameters of a class that name the Secret for a purpose.
func secretParameters(purpose string) (name, namespace string) {
	return parameterPrefix + purpose + "-secret-name", parameterPrefix + purpose + "-secret-namespace"
}

// isSecretParameter reports whether a parameter names a Secret. One class may have those of both kinds of snapshots.
func isSecretParameter(key string) bool {
	return slices.ContainsFunc([]string{SecretSnapshotter, SecretList, SecretGroup, SecretGroupGet}, func(purpose string) bool {
		name, namespace := secretParameters(purpose)
		return key == name || key == namespace
	})
}

// ResolveSecret returns the Secret that a class names for the purpose and for the content of a VolumeSnapshot, nil if none.
func ResolveSecret(class *api.VolumeSnapshotClass, purpose, content string, ref corev1.ObjectReference,
) (*corev1.SecretReference, error) {
	return resolveSecret("VolumeSnapshotClass", class.Name, class.Parameters, purpose, map[string]string{
		"volumesnapshotcontent.name": content, "volumesnapshot.namespace": ref.Namespace,
	}, map[string]string{"volumesnapshot.name": ref.Name})
}

// ResolveGroupSecret returns the Secret that a class names for the purpose and for the content of a VolumeGroupSnapshot, nil
// if none.
func ResolveGroupSecret(class *groupapi.VolumeGroupSnapshotClass, purpose, content string, ref corev1.ObjectReference,
) (*corev1.SecretReference, error) {
	return resolveSecret("VolumeGroupSnapshotClass", class.Name, class.Parameters, purpose, map[string]string{
		"volumegroupsnapshotcontent.name": content, "volumegroupsnapshot.namespace": ref.Namespace,
	}, map[string]string{"volumegroupsnapshot.name": ref.Name})
}

// resolveSecret expands the parameters of a class that name a Secret. chosen has the tokens that whoever creates a snapshot
// chooses: they may be a part of the Secret's name, never of its namespace.
func resolveSecret(kind, className string, parameters map[string]string, purpose string, tokens, chosen map[string]string,
) (*corev1.SecretReference, error) {
	nameKey, namespaceKey := secretParameters(purpose)
	name, hasName := parameters[nameKey]
	namespace, hasNamespace := parameters[namespaceKey]
	switch {
	case !hasName && !hasNamespace:
		return nil, nil
	case hasName != hasNamespace:
		return nil, fmt.Errorf("%s %q: parameters %q and %q must be given together", kind, className, nameKey, namespaceKey)
	}
	namespace, err := expand(kind, className, namespaceKey, namespace, tokens, validation.IsDNS1123Label)
	if err != nil {
		return nil, err
	}
	maps.Copy(tokens, chosen)
	if name, err = expand(kind, className, nameKey, name, tokens, validation.IsDNS1123Subdomain); err != nil {
		return nil, err
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
}

// expand replaces the tokens ${NAME} in the value of a parameter.
func expand(kind, class, key, value string, tokens map[string]string, check func(string) []string) (string, error) {
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
		return "", fmt.Errorf("%s %q: parameter %q: unknown token %s", kind, class, key, strings.Join(unknown, ", "))
	}
	if wrong := check(resolved); len(wrong) > 0 {
		return "", fmt.Errorf("%s %q: parameter %q: %q expands to %q: %s", kind, class, key, value, resolved, strings.Join(wrong, "; "))
	}
	return resolved, nil
}

// DeletionSecret returns the Secret that a content names for DeleteSnapshot, nil if none.
func DeletionSecret(content *api.VolumeSnapshotContent) *corev1.SecretReference {
	return secretOf(content.Annotations, AnnDeletionSecretName, AnnDeletionSecretNamespace)
}

// GroupDeletionSecret returns the Secret that a group's content names for DeleteVolumeGroupSnapshot, nil if none.
func GroupDeletionSecret(content *groupapi.VolumeGroupSnapshotContent) *corev1.SecretReference {
	return secretOf(content.Annotations, AnnGroupDeletionSecretName, AnnGroupDeletionSecretNamespace)
}

func secretOf(annotations map[string]string, name, namespace string) *corev1.SecretReference {
	ref := &corev1.SecretReference{Name: annotations[name], Namespace: annotations[namespace]}
	if ref.Name == "" || ref.Namespace == "" {
		return nil
	}
	return ref
}
