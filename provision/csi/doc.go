// Package csi provisions volumes by any CSI driver that serves on a unix socket. It is the Provisioner between the
// controller of package provision and the driver's controller service.
//
// It assumes of a driver what CSI promises and no more. What a call left behind is read off its status code: see
// provisioningState. A call that was never sent changes nothing of what is known; one that may have reached the driver and was
// not answered is repeated with the same name. An answer that does not keep what was asked for (too small, or empty
// where a copy was asked for) is deleted again.
//
// A driver may come and go at any time: calls wait, within their timeout, for a connection, and what the driver can
// do is asked anew for each connection.
package csi
