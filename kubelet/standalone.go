package kubelet

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// errStandalone is what everything gets that asks for the API server of a node that has none.
var errStandalone = errors.New("this node runs without an API server")

// nobody is the way to an API server that does not exist.
type nobody struct{}

// RoundTrip implements http.RoundTripper.
func (nobody) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		req.Body.Close()
	}
	return nil, errStandalone
}

// newOfflineClient makes a client of which every call fails at once: rooms that are asked for something only the API
// server has say so, instead of each of them knowing of a mode without one.
func newOfflineClient() (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://standalone.invalid", Transport: nobody{}, QPS: -1})
	if err != nil {
		return nil, fmt.Errorf("make the client of a node that stands alone: %w", err)
	}
	return client, nil
}
