// Package grouptaker takes and deletes the group snapshots of one CSI driver: it calls the driver's group controller service for
// VolumeGroupSnapshotContents and writes what the driver reports into their status, as the csi-snapshotter sidecar of
// external-snapshotter does. Package groupbinder creates and deletes the contents, and the VolumeSnapshots of a group.
//
// As in package taker, an annotation on the content marks a call whose result is unknown, so that no group stays in the
// storage that nothing knows of.
package grouptaker
