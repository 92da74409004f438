// Package oom reports when the kernel kills processes of a container because its memory is at its limit, on both versions of
// cgroups.
//
// Version 2 uses one inotify instance for all containers of the shim: a user may have few (fs.inotify.max_user_instances). Version 1
// uses an eventfd for each container. Neither occupies a thread.
package oom
