// Package resources gives containers what they do not share with others: CPUs, memory of chosen NUMA nodes, devices. It asks
// the managers of these in the packages below where they have what a Pod requests, chooses the NUMA nodes, and has all of them
// allocate it, or none.
package resources
