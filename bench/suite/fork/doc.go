// Package fork measures the clusters of tests: started from nothing, as a fork of a saved one, and taken from a pool; and the fork of a cluster
// with Pods and disks.
package fork
