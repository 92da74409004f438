// Package cm keeps the control groups of Pods, and computes the limits of Pods and containers.
//
// The tree is upstream's: ROOT/kubepods with one group for each quality-of-service class but Guaranteed, and one
// group for each Pod in its class. Containers lie inside their Pod's group and are made by the runtime. The groups
// themselves are all the state there is: [Manager.Pods] reads it back after a crash.
//
// Version 1 (also hybrid) and version 2 of the kernel's interface, and the cgroupfs and systemd drivers, are
// supported. A controller that is missing or cannot be written is said once and then left out.
package cm
