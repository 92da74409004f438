// Package secret is the node agent's access to Secrets, as volume plugins see it.
package secret

import corev1 "k8s.io/api/core/v1"

// Manager finds Secrets for those who set up Pods.
type Manager interface {
	// GetSecret returns the Secret, which must not be modified. The error says when it is not there.
	GetSecret(namespace, name string) (*corev1.Secret, error)
}
