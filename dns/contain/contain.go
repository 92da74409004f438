// Package contain is the root of the goroutines of Berth's plugins for CoreDNS: a panic there is logged with its stack, and names are
// resolved on. CoreDNS itself contains its handlers of queries.
package contain

import (
	"net/http"
	"runtime/debug"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// Guard returns a function that runs fn and only logs a panic of it.
func Guard(site string, fn func()) func() {
	return func() {
		defer func() {
			if value := recover(); value != nil {
				clog.Errorf("recovered from a panic at %s: %v\n%s", site, value, debug.Stack())
			}
		}()
		fn()
	}
}

// Handler returns a handler whose response is an error when next panics.
func Handler(site string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done := false
		Guard(site, func() { next.ServeHTTP(w, r); done = true })()
		if !done {
			http.Error(w, "internal error", http.StatusInternalServerError)
		}
	})
}
