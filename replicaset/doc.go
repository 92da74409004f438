// Package replicaset is a ReplicaSet controller: it creates and deletes Pods until each apps/v1 ReplicaSet has as many as its
// spec requires. It replaces the one in kube-controller-manager, with the same ownership rules, events, conditions and
// status.
//
// It differs in how it handles a cache that lags. It neither waits for the cache nor relies on it: package expect remembers
// what was just created and deleted, and every decision counts that. A request with an unknown outcome does no harm: the
// controller chooses the name of a Pod before it creates it, so that a retry finds the first attempt's Pod instead of
// creating a second one, and it reads a Pod whose deletion is uncertain before the next decision.
package replicaset
