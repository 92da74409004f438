// Package csi provisions volumes with any CSI driver that serves on a unix socket. Its Provisioner connects the controller of
// package provision with the driver's controller service.
//
// It assumes of a driver only what CSI requires. The status code of a failed call determines what the call left behind: see
// provisioningState. A call that was never sent changes nothing; a call that may have reached the driver and got no response
// is repeated with the same request. A volume that is not as requested (too small, or empty where a copy was requested) is
// deleted again.
//
// A driver may start and stop at any time: calls wait for a connection within their timeout, and the driver's capabilities
// are read again for each connection.
package csi
