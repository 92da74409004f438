// Package trustbundle provides the trust anchors of ClusterTrustBundle objects to projected volumes.
//
// The objects are watched from the first volume on that needs one; a node without such volumes sends no request for them.
package trustbundle
