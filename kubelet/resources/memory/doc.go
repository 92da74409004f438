// Package memory is the memory manager: it decides of which NUMA nodes the containers of Guaranteed Pods get their memory and
// huge pages.
//
// What is decided is in the file memory_manager_state, whose name and content are those of upstream's kubelet.
package memory
