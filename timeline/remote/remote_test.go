package remote_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/metrics"
	"github.com/berth-dev/berth/timeline/remote"
)

func TestRecordsCrossTheSocket(t *testing.T) {
	recorder := timeline.New(clock.RealClock{}, 0)
	recorder.Mark(timeline.Ref{Kind: "Pod", Name: "web", UID: "a"}, "kubelet", timeline.StageSeen, "", nil)
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := remote.Listen(socket)
	require.NoError(t, err)
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(metrics.New()))
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- remote.Serve(ctx, listener, recorder, registry) }()

	client := remote.NewClient(socket)
	record, found, err := client.Record(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, timeline.StageSeen, record.Stages[0].Name)
	_, found, err = client.Record(t.Context(), "b")
	require.NoError(t, err)
	require.False(t, found)

	latest, err := client.Latest(t.Context(), "Pod", 5)
	require.NoError(t, err)
	require.Len(t, latest, 1)
	require.Equal(t, "web", latest[0].Ref.Name)
	_, err = client.Latest(t.Context(), "Pod", -1)
	require.ErrorContains(t, err, "400 Bad Request")

	require.Contains(t, scrape(t, socket), "berth_stages_lost_total 0")
	stop()
	require.NoError(t, <-served)
	_, _, err = client.Record(t.Context(), "a")
	require.ErrorContains(t, err, "running berth")
}

// scrape gets /metrics as Prometheus would.
func scrape(t *testing.T, socket string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://berth/metrics", http.NoBody)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

func TestStagesAreStreamed(t *testing.T) {
	recorder := timeline.New(clock.RealClock{}, 0)
	listener, err := remote.Listen(filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	server := &http.Server{Handler: remote.Handler(recorder, nil)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	changes := make(chan timeline.Change, 8)
	ended := make(chan error, 1)
	client := remote.NewClient(listener.Addr().String())
	go func() {
		ended <- client.Stages(ctx, "a", func() { close(ready) }, func(c timeline.Change) { changes <- c })
	}()
	<-ready
	recorder.Mark(timeline.Ref{Kind: "Pod", Name: "other", UID: "b"}, "kubelet", timeline.StageSeen, "", nil)
	recorder.Mark(timeline.Ref{Kind: "Pod", Name: "web", UID: "a"}, "kubelet", timeline.StageReady, "", nil)
	change := <-changes
	require.Equal(t, "web", change.Ref.Name, "the other Pod's stages were not asked for")
	require.Equal(t, timeline.StageReady, change.Stage.Name)
	cancel()
	require.NoError(t, <-ended)

	again := make(chan struct{})
	go func() { ended <- client.Stages(t.Context(), "", func() { close(again) }, func(timeline.Change) {}) }()
	<-again
	require.NoError(t, server.Close())
	require.ErrorIs(t, <-served, http.ErrServerClosed)
	require.ErrorContains(t, <-ended, "read the stages of the running berth")
}

func TestListenReplacesSocketsOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 2 { // again: as after a kill
		listener, err := remote.Listen(path)
		require.NoError(t, err)
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		require.NoError(t, listener.Close())
	}
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err := remote.Listen(path)
	require.ErrorContains(t, err, "it is no socket")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
}
