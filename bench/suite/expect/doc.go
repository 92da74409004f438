// Package expect compares Berth's expectations store with the one of Kubernetes' own controllers,
// UIDTrackingControllerExpectations.
package expect
