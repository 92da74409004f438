// Package machine reads which CPUs, caches, NUMA nodes and pages of memory a machine has, from sysfs.
package machine
