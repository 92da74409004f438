package isolate

import "runtime/debug"

// contained returns a function that runs fn and only logs a panic of it: a request that a relay cannot handle must not end the cluster.
// internal/contain does the same, and needs more memory than all else of this program.
func contained(site string, fn func()) func() {
	return func() {
		defer func() {
			if value := recover(); value != nil {
				log("recovered from a panic at %s: %v\n%s", site, value, debug.Stack())
			}
		}()
		fn()
	}
}
