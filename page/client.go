package page

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// NewClient returns a client for a Server, which cannot change anything, whatever its user may do. Its watches have no limit of time.
func NewClient(config *rest.Config) (kubernetes.Interface, error) {
	reading := rest.CopyConfig(config)
	reading.Timeout = 0
	reading.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnly{next} })
	client, err := kubernetes.NewForConfig(reading)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	return client, nil
}

// errReadOnly is the error of a request that would change something.
var errReadOnly = errors.New("the page only reads")

// readOnly refuses every request that is not GET.
type readOnly struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (r readOnly) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		return nil, fmt.Errorf("%s %s: %w", request.Method, request.URL.Path, errReadOnly)
	}
	return r.next.RoundTrip(request)
}
