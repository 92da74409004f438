// Package conformance runs upstream's own end-to-end suite, which it builds from the module k8s.io/kubernetes, on a
// Berth cluster of its own, with stub images that need no registry.
//
// run.sh builds all of it and calls cmd/conformance, which assembles the images (internal/stubimages), starts the
// cluster (internal/cluster), runs the suite and writes report.md (internal/suite). README.md says how to use it.
package conformance
