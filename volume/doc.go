// Package volume defines volume plugins: a plugin makes one kind of volume available under a Pod's directory and
// removes it again.
//
// This package has the contract, the errors that plugins return, the registry that finds the plugin of a volume, and
// the names of directories on disk. It does no I/O. Package volume/testsuite tests a plugin against the contract;
// kubelet/volumemanager calls plugins.
package volume
