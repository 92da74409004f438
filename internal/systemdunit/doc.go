// Package systemdunit reads from systemd what it is about to do with the unit of this process.
package systemdunit
