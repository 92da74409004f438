// Package snapshot has what the two controllers of volume snapshots share: the names of the contract of VolumeSnapshots
// (KEP-177 and the API group snapshot.storage.k8s.io), the secrets that a class names, and the wait for a cluster that has
// the API. Package binder binds VolumeSnapshots to contents, package taker takes the snapshots of one CSI driver. Packages
// groupbinder and grouptaker do the same for VolumeGroupSnapshots (KEP-3476).
package snapshot
