// Package integration tests berth as a person meets it: the built binaries, a real cluster in a temporary
// directory, the real API server, containerd and runc. It needs root and `make build`; run it with
// `make integration`.
package integration
