// Package groupbinder takes VolumeGroupSnapshots through their life, as the snapshot-controller of external-snapshotter does: it
// selects the claims of a group, creates the VolumeGroupSnapshotContent, which package grouptaker has the driver take, and
// creates a VolumeSnapshot with its content for each snapshot of the group. Those of a group that exists already a user makes;
// it finds them. They are used, and deleted, like all others (package binder), but only with their group.
package groupbinder
