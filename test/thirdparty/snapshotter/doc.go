// Package snapshotter pins Kubernetes' snapshot controller, the sidecar that makes a CSI driver's snapshots, and their
// CRDs, which an integration test runs, unchanged, with csi.berth.dev. It is a module of its own: what they depend on is
// no business of Berth's.
package snapshotter
