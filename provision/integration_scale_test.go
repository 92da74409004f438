package provision_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/provision"
)

// requests counts what a client asks for that changes something, by verb and resource.
type requests struct {
	mu     sync.Mutex
	counts map[string]int
}

func (r *requests) count(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodGet {
				r.mu.Lock()
				r.counts[req.Method+" "+resourceOf(req.URL.Path)]++
				r.mu.Unlock()
			}
			return next.RoundTrip(req)
		})
	})
}

// resourceOf is the resource in the path of a request: /api/v1/namespaces/x/events, /api/v1/persistentvolumes/y.
func resourceOf(path string) string {
	for _, resource := range []string{"persistentvolumeclaims", "persistentvolumes", "events", "leases"} {
		if strings.Contains(path, "/"+resource) {
			return resource
		}
	}
	return path
}

func (r *requests) of(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[what]
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// Many claims at once, by a client whose own limit would take days over them: they are called for as many at a time as
// there are workers, each costs one PersistentVolume, the intent's two patches and two events, and neither they nor the
// Lease are throttled.
func TestRealManyClaimsAtOnce(t *testing.T) {
	client := realClient(t)
	class := newTestClass(t, client)
	const count = 25 * provision.DefaultThreadiness
	for i := range count {
		realClaim(t, client, class, fmt.Sprint("claim", i))
	}
	written := &requests{counts: map[string]int{}}
	own := ownClient(t, written.count, func(config *rest.Config) { config.QPS, config.Burst = 0.001, 1 })
	p := &fakeProvisioner{}
	p.setProvisionErr(blockUntilCalls(provision.DefaultThreadiness))
	ctrl, err := provision.New(own, "example.com/"+class, p, provision.LeaderElectionNamespace("kube-system"))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- ctrl.RunContext(ctx) }()
	untilClaims(t, client, class, func(_, bound int) bool { return bound == count })
	require.Equal(t, count, p.callCount())

	require.NoError(t, client.CoreV1().PersistentVolumeClaims(class).DeleteCollection(t.Context(),
		metav1.DeleteOptions{}, metav1.ListOptions{}))
	untilVolumes(t, client, class, 0)
	require.Len(t, p.deleted(), count)
	stop()
	require.NoError(t, <-done) // what was left to write is written
	require.Equal(t, count, written.of("POST persistentvolumes"))
	require.Equal(t, 2*count, written.of("PATCH persistentvolumeclaims"))
	require.Equal(t, 2*count, written.of("POST events"))
	require.Zero(t, written.of("PATCH events"))
	require.Positive(t, written.of("PUT leases")+written.of("POST leases"))
}

// blockUntilCalls is an answer that is given when so many calls are under way at once; with fewer it never is.
func blockUntilCalls(many int) func(provision.VolumeOptions) error {
	var mu sync.Mutex
	here, all := 0, make(chan struct{})
	return func(provision.VolumeOptions) error {
		mu.Lock()
		meet := all
		if here++; here == many {
			here, all = 0, make(chan struct{})
			close(meet)
		}
		mu.Unlock()
		<-meet
		return nil
	}
}
