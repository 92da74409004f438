// Package guard confines panics of the shim: one in a goroutine or in a request becomes a log entry or an error, and the Pod's
// other containers run on.
package guard
