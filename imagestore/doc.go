// Package imagestore makes container images from static binaries and brings images into containerd, without a
// registry.
//
// [Build] assembles an image in memory, deterministically: the same binary gives the same digest. A [Store] is a
// connection to one containerd; it imports archives (an OCI layout or a docker archive, plain, gzip or zstd), lists
// what is there and removes it. An image gets its name only after its content is complete, is for this machine and
// is unpacked, so that a failed import leaves nothing behind that a Pod could start.
package imagestore
