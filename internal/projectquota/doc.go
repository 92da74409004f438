// Package projectquota has the kernel count what a directory occupies: with a project ID of its own, on an ext4 or XFS file system
// with project quotas, the usage of a whole tree is one system call away. Nothing is limited.
//
// A process of the machine's own user namespace may change the project ID of files that it owns, so that the count is reliable only
// for files whose users have a user namespace of their own.
package projectquota
