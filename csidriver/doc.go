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
// image when it stages the volume, and detaches it when it unstages it; it fails to unstage a volume that another mount namespace
// still has mounted. A node that is disconnected continues to use a
// volume that was unpublished from it until the node is stopped: no other machine can revoke its access to a file.
//
// # Calls
//
// A goroutine of the driver does the work of a call, and continues after the caller's deadline; a repeated call returns
// its result, or Aborted while it is still in flight. Calls for one volume never run at the same time.
//
// # Size
//
// Images are sparse, but a volume's size is a promise: all volumes can be written completely, also after snapshots and clones,
// and none fails because another one has filled the disk. CreateVolume, ControllerExpandVolume and CreateSnapshot fail with
// ResourceExhausted if the disk below the root has not enough free space for that, and GetCapacity returns the rest. A volume needs
// its size less the blocks that only it has: a block that it shares with a snapshot or a clone by reflink is allocated again when
// it is written. The parameter overcommit of the StorageClass makes its volumes count less, and the parameter preallocate
// allocates their blocks at once.
//
// Other users of the disk are not bounded by this: what they use reduces what new volumes get, and Config.KeepFree reserves space for
// them, but if they use more than that after volumes were promised the rest, writes to volumes can fail. Preallocated volumes are
// safe from that until a snapshot of them is taken.
//
// # Raw block volumes
//
// Whoever may write to a loop device may give it another size, offset or sector size, and detach it. So a container gets a device of the
// kernel's device mapper over it, which passes no ioctl on, as long as its volume is published; package loopdev says how. Where the kernel
// has no device mapper, the container gets the loop device itself, the driver says so when it starts, and the next user of the
// volume gets the device as it was. No ioctl reaches another file or volume.
//
// # Limits of I/O
//
// The mutable parameters iops and throughput limit a volume's reads and writes each; package iolimit says how. A call of
// ControllerModifyVolume sets both: what it does not name is not limited. With Config.Shared, limits that change while the volume is
// published to another node come into force when it is next staged.
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
