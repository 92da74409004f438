// Package version says which Berth this is and which Kubernetes it speaks.
package version

import "fmt"

var (
	// Berth is this build's version; release builds set it with -ldflags "-X".
	Berth = "0.1.0-dev"
	// Commit is the commit it was built from, if the build sets it.
	Commit = ""
)

// Kubernetes is the release whose API server the one-machine cluster runs and whose kubelet ours stands in for.
const Kubernetes = "v1.36.3"

// Kubelet is what a Node reports as its kubelet's version: a semantic version whose core is the Kubernetes
// release, because clients compare it with the API server's.
func Kubelet() string { return fmt.Sprintf("%s+berth.%s", Kubernetes, Berth) }
