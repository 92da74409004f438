// Package memory keeps a process small, and gives memory back to the machine when it has come to rest.
//
// A node agent that has just started a hundred Pods holds what their start needed: a heap twice as large as what lives
// in it, and the pages of its program that only a start runs through. The Go runtime gives the first back slowly and
// the kernel takes the second only when it runs short. When nothing has happened for a while both are given back at
// once; what is needed again comes back by itself, the program's pages from the page cache.
package memory
