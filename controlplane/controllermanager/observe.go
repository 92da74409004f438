package controllermanager

import (
	"net/http"
	"sync"
)

// watchObserver calls seen once, when the first watch has been answered. The
// controller manager has no other sign of "my informers have started" while it
// serves no port of its own.
type watchObserver struct {
	once sync.Once
	seen func()
}

func newWatchObserver(seen func()) *watchObserver { return &watchObserver{seen: seen} }

func (o *watchObserver) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err == nil && response.StatusCode == http.StatusOK && request.URL.Query().Has("watch") {
			o.once.Do(o.seen)
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
