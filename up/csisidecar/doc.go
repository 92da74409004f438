// Package csisidecar runs the controllers of one CSI driver in one process: provisioner, capacity publisher, resizer,
// snapshotter and attacher. Elsewhere each of them is a sidecar container of the driver's Pod.
package csisidecar
