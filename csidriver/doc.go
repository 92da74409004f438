// Package csidriver is the CSI driver csi.berth.dev: real disks for one machine. Each volume is a sparse image file;
// attaching it attaches the file to a loop device, staging it creates and mounts its filesystem.
//
// # State
//
// The driver keeps no state in memory. The root directory has the volumes, the kernel's loop devices show what is
// attached, and the mount table shows what is staged and published. The driver may be killed at any moment: a volume's
// directory is created and removed by one rename, and an interrupted mkfs is repeated.
//
//	ROOT/volumes/vol-HASH/{disk.img,meta.json}      HASH is that of the name, so the same name is the same volume
//	ROOT/volumes/vol-HASH/published.json            Config.Shared only: the node that the volume is published to
//	ROOT/snapshots/snap-HASH/{disk.img,meta.json}
//	ROOT/tmp/                                       what is being created or removed; emptied at every start
//
// Names and ids of requests are never used as paths: names are hashed, and ids must have the form of such a hash.
//
// # Several nodes
//
// With Config.Shared several nodes share the root, and a volume can move between them. The driver with the controller
// service records the node that a volume is published to, and rejects a second one; the driver on that node attaches the
// image when it stages the volume, and detaches it when it unstages it. A node that is disconnected continues to use a
// volume that was unpublished from it until the node is stopped: no other machine can revoke its access to a file.
//
// # Calls
//
// A goroutine of the driver does the work of a call, and continues after the caller's deadline; a repeated call returns
// its result, or Aborted while it is still in flight. Calls for one volume never run at the same time.
//
// # Size
//
// Images are sparse, but the driver reserves a volume's full size: CreateVolume and ControllerExpandVolume fail with
// ResourceExhausted if the disk below the root has less free space, unless Config.Thin is set. Blocks that a snapshot
// shares with its volume by reflink count once: no space is reserved for overwriting them, and writes to the volume fail
// if the disk is full by then.
//
// # Expansion
//
// xfs can be expanded while it is mounted. ext4 can, too, but only by a process with CAP_SYS_RESOURCE; without it the
// filesystem is expanded when its volume is next staged, and NodeExpandVolume fails until then.
//
// # Programs
//
// The driver runs mkfs.ext4, e2fsck and resize2fs (package e2fsprogs) or mkfs.xfs (package xfsprogs). Everything else
// are system calls.
package csidriver
