package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
)

// leaseServer is an API server that has one Lease, or none yet.
type leaseServer struct {
	mu    sync.Mutex // guards lease
	lease []byte
}

// ServeHTTP implements http.Handler.
func (s *leaseServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method != http.MethodGet:
		s.lease, _ = io.ReadAll(r.Body) // an error leaves a Lease that no replica can read
	case s.lease == nil:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
		return
	}
	_, _ = w.Write(s.lease)
}

func TestOneReplicaRunsAtATime(t *testing.T) {
	server := httptest.NewServer(&leaseServer{})
	defer server.Close()
	config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	type replica struct {
		started, ended chan struct{}
		stop           context.CancelFunc
	}
	launch := func() replica {
		r := replica{started: make(chan struct{}), ended: make(chan struct{})}
		work := component{start: func(ctx context.Context) error {
			close(r.started)
			<-ctx.Done()
			return nil
		}}
		elected, err := whileLeading(config, "lease", nil, slog.New(slog.DiscardHandler), work)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		r.stop = stop
		go func() {
			defer close(r.ended)
			if err := elected.start(ctx); err != nil {
				t.Error(err)
			}
		}()
		return r
	}
	first := launch()
	<-first.started
	second := launch()
	first.stop()
	<-first.ended // it has released the Lease
	<-second.started
	third := launch()
	third.stop()
	<-third.ended
	select {
	case <-third.started:
		t.Fatal("it started while another replica held the Lease")
	default:
	}
	second.stop()
	<-second.ended
}

func TestTheLeaseOfAttachDetachIsOfItsNodes(t *testing.T) {
	lease := func(text string) string {
		nodes, err := labels.Parse(text)
		require.NoError(t, err)
		return attachDetachLease(nodes)
	}
	require.Equal(t, lease("a=1,b=2"), lease("b=2, a=1"))
	require.NotEqual(t, lease("pool=one"), lease("pool=two"))
}
