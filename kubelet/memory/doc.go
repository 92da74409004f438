// Package memory keeps the memory of a long-running process small and returns memory to the machine when the process
// becomes idle.
//
// A kubelet that has just started a hundred Pods still occupies what their start needed: a heap about twice the size of
// its live objects, and the pages of its program that only a start executes. The Go runtime returns the heap slowly,
// and the kernel reclaims program pages only under memory pressure. [Release] returns both at once; [IdleWatcher]
// decides when. What is needed again is mapped again, the program's pages from the page cache.
package memory
