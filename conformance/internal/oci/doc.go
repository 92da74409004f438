// Package oci assembles container images in memory and writes them as one OCI layout. Times and order are fixed,
// so an image's digest depends on its content alone.
package oci
