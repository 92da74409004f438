// Package writelog makes a disk as a power cut at any moment would have left it, from the record of what a machine wrote to it.
//
// The record has the format of the Linux kernel's dm-log-writes, which qemu's driver blklogwrites writes: a super block, and then each
// write, discard and flush in its order. What a machine has written is durable after the next flush, or at once if it asked for that (FUA).
// Until then a disk may keep any part of it, in any order, because it has a cache that loses its content with the power.
package writelog
