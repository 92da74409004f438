package pullrecords

import (
	"cmp"
	"slices"
	"strings"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// maxRenewedSecrets is how many Secrets a record may have for one name before found ones are no longer added: where namespaces
// come and go, each with its copy of one Secret, the record would grow without end.
const maxRenewedSecrets = 100

// isID reports whether the image is named by its id, which is no name that was ever pulled.
func isID(image string) bool { return strings.HasPrefix(image, "sha256:") }

// credentialsFor are those that the record has for the name. An image that is named by its id is open to all if it is
// so under any name.
func credentialsFor(record *kubeletconfig.ImagePulledRecord, name string) (kubeletconfig.ImagePullCredentials, bool) {
	if record == nil {
		return kubeletconfig.ImagePullCredentials{}, false
	}
	if name != "" {
		known, ok := record.CredentialMapping[name]
		return known, ok
	}
	for _, known := range record.CredentialMapping {
		if known.NodePodsAccessible {
			return known, true
		}
	}
	return kubeletconfig.ImagePullCredentials{}, false
}

// matchesAny reports whether the source is one of those known. Of a Secret either its identity or its content is enough: it
// may have been renewed since, or be a copy in another namespace.
func matchesAny(known kubeletconfig.ImagePullCredentials, source Source) bool {
	if source.Secret != nil {
		return slices.ContainsFunc(known.KubernetesSecrets, func(s kubeletconfig.ImagePullSecret) bool {
			return sameObject(s, *source.Secret) || s.CredentialHash != "" && s.CredentialHash == source.Secret.CredentialHash
		})
	}
	return source.ServiceAccount != nil && slices.Contains(known.KubernetesServiceAccounts, *source.ServiceAccount)
}

// sameObject reports whether both are one object.
func sameObject(a, b kubeletconfig.ImagePullSecret) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

func containsSecret(list []kubeletconfig.ImagePullSecret, secret kubeletconfig.ImagePullSecret) bool {
	return slices.Contains(list, secret)
}

// mergeSource is the record with the source added under the name, and whether that changes it. The old record is left as it is;
// it may be nil. Without a source there only has to be a record.
func mergeSource(old *kubeletconfig.ImagePulledRecord, name, id string, source *Source) (
	next *kubeletconfig.ImagePulledRecord, changed bool,
) {
	if old == nil {
		old, changed = &kubeletconfig.ImagePulledRecord{ImageRef: id}, true
	}
	next = old.DeepCopy()
	if source == nil || name == "" {
		return next, changed
	}
	known := next.CredentialMapping[name]
	switch {
	case known.NodePodsAccessible:
		return next, changed
	case source.isPublic():
		known = kubeletconfig.ImagePullCredentials{NodePodsAccessible: true}
	case source.Secret != nil:
		if containsSecret(known.KubernetesSecrets, *source.Secret) {
			return next, changed
		}
		known.KubernetesSecrets = append(slices.DeleteFunc(known.KubernetesSecrets,
			func(s kubeletconfig.ImagePullSecret) bool { return sameObject(s, *source.Secret) }), *source.Secret)
		slices.SortFunc(known.KubernetesSecrets, func(a, b kubeletconfig.ImagePullSecret) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
		})
	case slices.Contains(known.KubernetesServiceAccounts, *source.ServiceAccount):
		return next, changed
	default:
		known.KubernetesServiceAccounts = append(known.KubernetesServiceAccounts, *source.ServiceAccount)
		slices.SortFunc(known.KubernetesServiceAccounts, func(a, b kubeletconfig.ImagePullServiceAccount) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
		})
	}
	if next.CredentialMapping == nil {
		next.CredentialMapping = map[string]kubeletconfig.ImagePullCredentials{}
	}
	next.CredentialMapping[name] = known
	return next, true
}
