// Package localstorage enforces the limits of local ephemeral storage: what the containers of a Pod write to their own file
// systems, logs and emptyDirs may not exceed the limits of its containers, and an emptyDir on disk not its sizeLimit.
//
// The kernel has no event for what a directory occupies, and measuring one costs a system call for each file. So only Pods that
// have such limits are measured, and only when they may have come near to one: the free space of the whole file system, which
// costs one system call, is compared with what was left to the nearest limit at the last measurement. See docs/timers.md.
package localstorage
