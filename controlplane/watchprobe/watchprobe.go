// Package watchprobe detects the first watch that an API server accepts. It is
// the only sign that the informers of kube-controller-manager have started while
// it serves no port of its own.
package watchprobe

import (
	"net/http"
	"sync"
)

// Wrap returns a function for rest.Config.Wrap that calls seen once, from the
// goroutine of the request, when the first watch has got status 200.
// Requests and responses pass unchanged.
func Wrap(seen func()) func(http.RoundTripper) http.RoundTripper {
	var once sync.Once
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil && response.StatusCode == http.StatusOK && request.URL.Query().Has("watch") {
				once.Do(seen)
			}
			return response, err
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
