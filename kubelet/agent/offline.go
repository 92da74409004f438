package agent

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// errStandalone is the error of each request to the API server of a node that has none.
var errStandalone = errors.New("this node runs without an API server")

// offlineTransport fails each request.
type offlineTransport struct{}

// RoundTrip implements http.RoundTripper.
func (offlineTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		req.Body.Close()
	}
	return nil, errStandalone
}

// newOfflineClient returns a client of which every call fails at once: a component that needs the API server fails with
// that error, and need not know of a mode without one.
func newOfflineClient() (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://standalone.invalid", Transport: offlineTransport{}, QPS: -1})
	if err != nil {
		return nil, fmt.Errorf("create the client of a standalone node: %w", err)
	}
	return client, nil
}
