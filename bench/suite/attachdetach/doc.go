// Package attachdetach compares Berth's attach/detach reconciler with the one of Kubernetes, both with their own caches
// and executors, and a plugin that attaches at once.
package attachdetach
