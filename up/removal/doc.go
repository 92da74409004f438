// Package removal removes what a cluster's processes leave on the machine: mounts, processes, cgroups, directories. What is
// already gone is no error.
package removal
