// Package machine measures for package eviction what is available on a Linux machine, and has the kernel report the use of
// memory.
//
// Memory, the file system of the kubelet's directory and process IDs are those of package node; the limit of all Pods is read
// from their cgroup, and the file systems of images and writable layers are named by the container runtime.
//
// The kernel's reports wake the manager, which then measures: a report says nothing by itself.
//
//   - cgroup v1 has thresholds of memory.usage_in_bytes and the levels of memory.pressure_level, by eventfd: the first report
//     that memory was allocated, the second that cached files are reclaimed for it.
//   - Pressure stall information, with either version, reports that processes wait for memory.
//   - cgroup v2 changes memory.events of the cgroup of all Pods when it reaches its limit.
package machine
