// Package mirror serves an OCI layout as a read-only registry on loopback, for the specs whose Pods pull always.
package mirror
