// Package claimwork has what the controllers share that change the volumes of a CSI driver when their claims change, such as
// packages resize and modify: they watch the claims, call the driver for a claim's volume, write what becomes of it into the
// claim's status and conditions, and retry.
package claimwork
