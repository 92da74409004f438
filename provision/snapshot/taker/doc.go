// Package taker takes and deletes the snapshots of one CSI driver: it calls the driver for VolumeSnapshotContents and writes
// what the driver reports into their status, as the csi-snapshotter sidecar of external-snapshotter does. Package binder, or
// the snapshot-controller of external-snapshotter, creates and deletes the contents.
//
// Before the first CreateSnapshot call a content gets the annotation that such a call may have been made, which is removed
// when the result is known. A content that is deleted in between is completed first, so that no snapshot stays in the storage
// that nothing knows of.
package taker
