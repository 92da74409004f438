// Package hints decides on which NUMA nodes a container or a Pod gets its resources: each resource names sets of nodes that
// have enough of it, and a policy chooses the set that suits all of them.
package hints
