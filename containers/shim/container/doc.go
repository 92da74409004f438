// Package container creates, runs and removes containers by runc's library in this process.
//
// What makes a container is runc's: the conversion of the OCI specification, namespaces, cgroups, seccomp, mounts, and its state on
// disk, by which `runc --root … list`, `state` and `exec` work on these containers as on runc's own. This package does what runc's
// command line does around its library. Each operation on a container that runs loads it from that state, as each call of runc does:
// an exec that hangs blocks no other operation, and a change by
// runc's commands counts.
package container
