// Package statusupdater writes the list of attached volumes into the statuses of nodes.
package statusupdater
