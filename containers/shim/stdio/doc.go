// Package stdio connects the standard streams of a container's processes with the FIFOs and files that containerd names.
//
// A process without a terminal gets pipes, and the shim copies between them and containerd's FIFOs. One with a terminal gets a
// pseudoterminal from runc's library, whose other end comes over a socket. The shim keeps the reading ends of output FIFOs open until
// the process is deleted, so that neither a containerd that is away ends the process with SIGPIPE nor the last output is lost. A
// stream on which nothing happens occupies neither a thread nor a buffer.
package stdio
