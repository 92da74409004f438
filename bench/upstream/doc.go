// Package upstream pins what Berth's node agent is measured against, the kubelet of Kubernetes, as a module of its own
// so that it is built with the versions of libraries that it was released with.
package upstream
