// Package pidlimit reads how many processes and threads a machine has, and how many it can have.
package pidlimit
