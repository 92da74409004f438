// Package cpus is the CPU manager: it decides which containers have CPUs of their own, and which CPUs all others share.
//
// What is decided is in the file cpu_manager_state, whose name and content are those of upstream's kubelet.
package cpus
