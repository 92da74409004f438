package pullrecords

import (
	"cmp"
	"slices"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// maxRenewedSecrets is the number of Secrets of one name in a record from which on renewed Secrets are no longer added:
// where namespaces come and go, each with its copy of a Secret, the record would grow without bound.
const maxRenewedSecrets = 100

// credentialsFor returns the credentials that the record has for the name. An image named by its id is accessible to
// all Pods if it is under any name.
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

// matchesAny reports whether the source is one of the known ones. For a Secret either its identity or its content must
// match: it may have been renewed since, or be a copy in another namespace.
func matchesAny(known kubeletconfig.ImagePullCredentials, source Source) bool {
	if source.Secret != nil {
		return slices.ContainsFunc(known.KubernetesSecrets, func(s kubeletconfig.ImagePullSecret) bool {
			return sameObject(s, *source.Secret) || s.CredentialHash != "" && s.CredentialHash == source.Secret.CredentialHash
		})
	}
	return source.ServiceAccount != nil && slices.Contains(known.KubernetesServiceAccounts, *source.ServiceAccount)
}

// sameObject reports whether both refer to the same Secret.
func sameObject(a, b kubeletconfig.ImagePullSecret) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

func containsSecret(list []kubeletconfig.ImagePullSecret, secret kubeletconfig.ImagePullSecret) bool {
	return slices.Contains(list, secret)
}

// mergeSource returns the record with the source added under the name, and whether that changes it. The old record is
// not modified and may be nil. Without a source only the record itself is created.
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
