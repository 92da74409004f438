// Package credentialprovider obtains registry logins from exec credential providers
// (credentialprovider.kubelet.k8s.io). A provider is a program that is run for each pull of an image that it matches,
// with a token of the Pod's service account if its configuration asks for one. Its response is cached for as long as it
// allows.
package credentialprovider
