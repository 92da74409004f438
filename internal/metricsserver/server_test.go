package metricsserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/freeport"
)

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := freeport.Loopback()
	require.NoError(t, err)
	return strconv.Itoa(port)
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(data)
}

func TestAddress(t *testing.T) {
	for address, want := range map[string]string{
		"8080": "127.0.0.1:8080", ":8080": "127.0.0.1:8080", "0.0.0.0:8080": "0.0.0.0:8080", "[::]:8080": "[::]:8080",
	} {
		got, err := ParseAddress(address)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, address := range []string{"", "host", "host:", ":0", "1.2.3.4:99999", "1:2:3", ":http"} {
		_, err := ParseAddress(address)
		require.ErrorContains(t, err, "want HOST:PORT")
	}
	_, err := New(Deps{Gatherer: &Registries{}}, "192.0.2.1:8080")
	require.ErrorContains(t, err, "listen on 192.0.2.1:8080 for metrics", "an address of another machine")
	_, err = New(Deps{}, "8080")
	require.EqualError(t, err, "metricsserver: Deps.Gatherer is required")
}

func TestChecks(t *testing.T) {
	var ready, healthy error
	waiting := true
	s, err := New(Deps{Gatherer: &Registries{}, Checks: []Check{
		{Name: "one", Ready: func() error { return ready }, Healthy: func() error { return healthy }},
		{Name: "two", IsWaiting: func() bool { return waiting }},
	}}, freeAddress(t))
	require.NoError(t, err)
	defer s.listener.Close()
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	check := func(path string, wantStatus int, want string) {
		t.Helper()
		status, body := get(t, server.URL+path)
		require.Equal(t, wantStatus, status)
		require.Equal(t, want, body)
	}
	check("/readyz", http.StatusOK, "[+]one ok\n[+]two ok: waiting for the Lease\n")
	waiting, ready = false, errors.Join(errors.New("no cache"), errors.New("no worker"))
	check("/readyz", http.StatusInternalServerError, "[-]one failed: no cache; no worker\n[+]two ok\n")
	check("/healthz", http.StatusOK, "[+]one ok\n[+]two ok\n")
	healthy = errors.New("stuck")
	check("/healthz", http.StatusInternalServerError, "[-]one failed: stuck\n[+]two ok\n")
}

func TestMetricsOfComponents(t *testing.T) {
	registries := &Registries{}
	gauge := func(component string, value float64) {
		g := prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "things", Help: "Things.", ConstLabels: prometheus.Labels{"component": component}})
		g.Set(value)
		registries.New(component).MustRegister(g)
	}
	gauge("a", 1)
	gauge("b", 2)
	gauge("a", 3) // a was restarted
	s, err := New(Deps{Gatherer: registries}, freeAddress(t))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	status, body := get(t, "http://"+s.Address()+"/metrics")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "things{component=\"a\"} 3\nthings{component=\"b\"} 2\n")
	require.Contains(t, body, "process_start_time_seconds")
	require.Contains(t, body, "go_goroutines")
	stop()
	require.NoError(t, <-ended)
}

// TestServerWaitsForItsPort: a process that is about to end may still have the port.
func TestServerWaitsForItsPort(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	clock := testclock.NewFakeClock(time.Now())
	s, err := New(Deps{Gatherer: &Registries{}, Clock: clock}, other.Addr().String())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	wait := func(condition func() bool) { require.Eventually(t, condition, time.Minute, time.Millisecond) }
	wait(clock.HasWaiters)
	clock.Step(retryPeriod) // the port is still in use
	wait(clock.HasWaiters)
	require.NoError(t, other.Close())
	clock.Step(retryPeriod)
	wait(func() bool {
		status, _ := get(t, "http://"+s.Address()+"/healthz")
		return status == http.StatusOK
	})
	stop()
	require.NoError(t, <-ended)
}
