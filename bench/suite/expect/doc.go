// Package expect sets Berth's expectations store beside the one of Kubernetes' own controllers,
// UIDTrackingControllerExpectations.
package expect
