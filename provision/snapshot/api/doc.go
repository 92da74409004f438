// Package api has the objects of the API group snapshot.storage.k8s.io/v1 and a client for them. The contract is that of the
// CustomResourceDefinitions of external-snapshotter v8.
//
// The types are not those of external-snapshotter's client module, because its go.mod requires newer versions of what
// k8s.io/apimachinery uses than the release of Kubernetes that Berth is built with.
package api
