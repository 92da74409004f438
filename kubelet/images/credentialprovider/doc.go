// Package credentialprovider asks programs for logins to registries: upstream's exec credential providers
// (credentialprovider.kubelet.k8s.io). A program is run when an image is pulled that it answers for, with a token of the
// Pod's service account if its configuration wants one, and its answer is used again for as long as it allows.
package credentialprovider
