// Package lifecycle runs a container's postStart and preStop hooks.
package lifecycle
