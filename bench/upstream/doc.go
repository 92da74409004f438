// Package upstream pins the kubelet of Kubernetes, with which Berth's is compared, as a module of its own
// so that it is built with the versions of libraries that it was released with.
package upstream
