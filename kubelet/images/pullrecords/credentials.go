package pullrecords

import (
	"cmp"
	"slices"

	"github.com/distribution/reference"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/images/imagename"
)

// maxRenewedSecrets is the number of Secrets of one name in a record from which on renewed Secrets are no longer added:
// where namespaces come and go, each with its copy of a Secret, the record would grow without bound.
const maxRenewedSecrets = 100

// mappingKey returns the key of an image's credentials in a record: the name as the container has it, without tag and digest, as upstream's
// kubelet writes it. It is empty for an id.
func mappingKey(image string) string {
	if imagename.IsID(image) {
		return ""
	}
	parsed, err := reference.Parse(image)
	if err != nil {
		return ""
	}
	named, ok := parsed.(reference.Named)
	if !ok {
		return ""
	}
	return named.Name()
}

// credentialsFor returns the credentials that the record has for the image, under any form of its name: containers that write the registry
// and such that leave it out use the same image. An image named by its id is accessible to all Pods if it is under any name.
func credentialsFor(record *kubeletconfig.ImagePulledRecord, image string) (found kubeletconfig.ImagePullCredentials) {
	if record == nil {
		return found
	}
	name := imagename.Repository(image)
	for key, known := range record.CredentialMapping {
		switch {
		case name == "" && known.NodePodsAccessible:
			return known
		case name == "" || imagename.Repository(key) != name:
		case known.NodePodsAccessible:
			return known
		default:
			found.KubernetesSecrets = append(found.KubernetesSecrets, known.KubernetesSecrets...)
			found.KubernetesServiceAccounts = append(found.KubernetesServiceAccounts, known.KubernetesServiceAccounts...)
		}
	}
	return found
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

// mergeSource returns the record with the source added under the key, and whether that changes it. The old record is
// not modified and may be nil. Without a source only the record itself is created.
func mergeSource(old *kubeletconfig.ImagePulledRecord, key, id string, source *Source) (
	next *kubeletconfig.ImagePulledRecord, changed bool,
) {
	if old == nil {
		old, changed = &kubeletconfig.ImagePulledRecord{ImageRef: id}, true
	}
	next = old.DeepCopy()
	if source == nil || key == "" {
		return next, changed
	}
	known := next.CredentialMapping[key]
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
	next.CredentialMapping[key] = known
	return next, true
}
