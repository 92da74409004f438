// Package secret has the interface through which volume plugins of the 1.4 API read Secrets.
package secret

import corev1 "k8s.io/api/core/v1"

// Manager reads Secrets.
type Manager interface {
	// GetSecret returns the Secret, which must not be modified. A missing one is an error.
	GetSecret(namespace, name string) (*corev1.Secret, error)
}
