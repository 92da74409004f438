// Package csidriver is the CSI driver csi.berth.dev: real disks for one machine. Each volume is a sparse image
// file; attaching it makes a loop device of it, staging makes and mounts its filesystem.
//
// # State
//
// The driver keeps none in memory. What exists is what lies in the root directory, what is attached is what the
// kernel's loop devices say, what is staged and published is what the mount table says. It may be killed at any
// moment: a volume's directory appears and vanishes by one rename, and an interrupted mkfs is done again.
//
//	ROOT/volumes/vol-HASH/{disk.img,meta.json}      HASH is of the name, so that the same name is the same volume
//	ROOT/volumes/vol-HASH/published.json            Config.Shared only: the node that the volume is published to
//	ROOT/snapshots/snap-HASH/{disk.img,meta.json}
//	ROOT/tmp/                                       what is being made or removed; emptied at every start
//
// Names and ids come from outside and never reach a path: names are hashed, ids must look like such a hash.
//
// # Several nodes
//
// With Config.Shared the root is one that several nodes reach, and a volume goes where its Pod goes. The driver with
// the controller service writes down to which node a volume is published, and refuses a second one; the driver of that
// node attaches the image when it stages the volume, and frees it when it unstages it. A node that is cut off goes on
// using a volume that was taken from it until somebody stops the node: a file has no lock that another machine can break.
//
// # Calls
//
// What a call changes is done by a goroutine of the driver, which goes on when the caller's deadline has passed;
// the repeated call then finds it done, or is told Aborted while it is still under way. Calls for one volume never
// run at the same time.
//
// # Size
//
// Images are sparse, but a volume's whole size is promised when it is made: CreateVolume and
// ControllerExpandVolume refuse with ResourceExhausted what the disk below the root could not keep, unless
// Config.Thin is set. Blocks that a snapshot shares with its volume by reflink count once: room for what is overwritten
// later is not promised, and a disk that is full by then makes writes to the volume fail.
//
// # Growing
//
// xfs grows while it is mounted. The kernel lets ext4 do so only for a process with CAP_SYS_RESOURCE; without it the
// filesystem grows when its volume is next staged, and NodeExpandVolume says so until then.
//
// # What it runs
//
// mkfs.ext4, e2fsck and resize2fs (package e2fsprogs) or mkfs.xfs (package xfsprogs). All else are system calls.
package csidriver
