// Package mounts mounts and unmounts with system calls, checks whether a path is a mount point, and removes a tree
// without ever passing through a mount point.
//
// [Syscalls] implements the same small [Mounter] interface as k8s.io/mount-utils' Interface, so either can be used;
// Syscalls starts no process for a mount.
package mounts
