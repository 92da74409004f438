// Package mounts is the few things that volumes need of the kernel's mount table, done with system calls: mount and
// unmount, ask whether a path is a mount point, and remove a tree without ever passing through a mount point.
//
// [Syscalls] satisfies the same small [Mounter] interface as k8s.io/mount-utils' Interface does, so either serves;
// ours starts no process for a mount.
package mounts
