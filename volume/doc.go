// Package volume says what a volume plugin is: the piece of code that makes one kind of volume appear under a
// Pod's directory and makes it vanish again.
//
// This package holds the contract, the errors that plugins answer with, the registry that finds the plugin of a
// volume, and the names of directories on disk. It does no I/O. Package volume/testsuite proves a plugin against
// the contract; kubelet/volumemanager drives plugins.
package volume
