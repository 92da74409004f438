// Package groupapi has the kinds of the API group groupsnapshot.storage.k8s.io/v1beta2 that Berth's controllers of group
// snapshots use, with the fields that they use, and a client for them. Package api has those of single snapshots.
package groupapi
