// Package binder binds VolumeSnapshots to VolumeSnapshotContents, as the snapshot-controller of external-snapshotter does: it
// creates the content of a VolumeSnapshot of a claim, which package taker or an external-snapshotter sidecar completes by
// its driver, or finds the content that a VolumeSnapshot names; it copies the content's status, chooses the default class,
// and carries the deletion of a VolumeSnapshot over to its content, as the deletion policy says.
//
// Everything follows events: a VolumeSnapshot whose claim is not bound, that waits for a class, or whose deletion waits for a
// volume that is created from it, is continued by a watch of that object, which exists only as long as something waits.
package binder
