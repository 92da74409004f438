package server

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestOneProbeAtATime checks a component that hangs several times at once.
func TestOneProbeAtATime(t *testing.T) {
	probes, release := make(chan struct{}, 10), make(chan struct{})
	check := &responsiveCheck{name: "component", clock: clocktesting.NewFakeClock(time.Now()), probe: func() { probes <- struct{}{}; <-release }}
	request := httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody)
	ended := make(chan error, 3)
	for range cap(ended) {
		go func() { ended <- check.Check(request) }()
	}
	<-probes
	close(release)
	for range cap(ended) {
		require.NoError(t, <-ended)
	}
	require.NoError(t, check.Check(request))
}
