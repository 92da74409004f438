// Package localpath pins Rancher's provisioner, which an integration test runs, unchanged, on a berth cluster.
// It is a module of its own: what it depends on is no business of Berth's.
package localpath
