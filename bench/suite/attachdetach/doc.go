// Package attachdetach sets Berth's attach/detach reconciler beside the one of Kubernetes, both with their own worlds
// and executors, and a plugin that attaches at once.
package attachdetach
