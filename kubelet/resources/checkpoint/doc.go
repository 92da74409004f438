// Package checkpoint reads and writes the state files of upstream's resource managers: JSON with a checksum over the dump of a
// Go value, whose type names are part of it.
package checkpoint
