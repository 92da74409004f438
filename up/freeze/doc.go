// Package freeze stops all processes of a running cluster for a moment, so that its files are those of one moment, as if the power had
// failed then.
//
// The order is from what decides to what works: first the supervisor, which would take the silence of the others for a hang; then the
// components, so that nothing new begins; then the Pods, by the kernel's freezer, which they do not notice. After that the kernel writes
// out what it has cached of the cluster's disks. The way back is the reverse.
//
// A process of its own, the guard, starts what was stopped again. It does so when it is released or when its parent ends, however that ends:
// no cluster stays frozen.
package freeze
