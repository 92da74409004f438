// Package bootstrap is how containerd calls a shim's program: the command line, the start of a shim with its socket, the removal of a
// container whose shim has died, and the description of the runtime.
package bootstrap
