// Package volume has the types of the 1.4 API for volume plugins. The contract of a plugin is in the module's package volume.
package volume
