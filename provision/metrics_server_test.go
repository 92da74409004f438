package provision

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/fake"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/freeport"
)

// unusedProvisioner is a Provisioner that is never called.
type unusedProvisioner struct{ Provisioner }

// TestMetricsPagesShareAPort: two controllers live in one process, each with metrics of its own. Of two that are given
// one port the second tries again each five seconds, and has it when the first has ended.
func TestMetricsPagesShareAPort(t *testing.T) {
	port, err := freeport.Loopback()
	require.NoError(t, err)
	clock := testclock.NewFakeClock(time.Now())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	status := func(path string) int {
		response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/%s", port, path))
		if err != nil {
			return 0
		}
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	serve := func(path string) (stop func()) {
		ctrl, err := New(fake.NewClientset(), "example.com/"+path, unusedProvisioner{}, LeaderElection(false),
			MetricsAddress("127.0.0.1"), MetricsPort(int32(port)), MetricsPath("/"+path))
		require.NoError(t, err)
		ctrl.settings.clock = clock
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctrl.serveMetrics(ctx)
		}()
		return func() { cancel(); <-done }
	}
	eventually := func(condition func() bool) { require.Eventually(t, condition, time.Minute, time.Millisecond) }

	stopFirst := serve("first")
	eventually(func() bool { return status("first") == http.StatusOK })
	stopSecond := serve("second")
	defer stopSecond()
	for range 2 { // the port is not free, and then not free still
		eventually(clock.HasWaiters)
		require.Equal(t, http.StatusNotFound, status("second"))
		clock.Step(5 * time.Second)
	}
	eventually(clock.HasWaiters)
	stopFirst()
	require.Zero(t, status("second"), "a free port has no event")
	clock.Step(5 * time.Second)
	eventually(func() bool { return status("second") == http.StatusOK })
	require.Equal(t, http.StatusNotFound, status("first"))
}
