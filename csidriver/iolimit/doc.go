// Package iolimit limits the I/O of a block device, whichever process does it.
//
// With cgroup v2 a limit is io.max (Documentation/admin-guide/cgroup-v2.rst) of the topmost cgroups: each bounds what all
// processes below it do together, and all Pods of a cluster are below the same one.
//
// With cgroup v1 a limit is blkio.throttle.* (Documentation/admin-guide/cgroup-v1/blkio-controller.rst) of every cgroup, because
// the kernel does not add up what cgroups below another one do. So each container has the limit for itself, and what the page cache
// writes has it for all together. New cgroups get the limits as they are created, while any device is limited.
//
// Neither applies to a process in the root cgroup of v2, which the kernel does not limit.
package iolimit
