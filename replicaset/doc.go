// Package replicaset is a ReplicaSet controller: it keeps as many Pods alive as each apps/v1 ReplicaSet asks for. It
// takes the place of the one in kube-controller-manager, with the same ownership rules, events, conditions and status.
//
// What differs is how it deals with a cache that lags behind. It neither waits for the cache nor trusts it: package
// expect tells what was just created and deleted, and every decision counts that in. A request whose answer was lost
// is settled before it can do harm: a Pod is created under a name chosen beforehand, so that trying again meets
// the first attempt's Pod instead of making a second one, and a deletion in doubt is looked up before the next
// decision.
package replicaset
