package cri_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cri"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// versionService is a runtime service that implements Version only.
type versionService struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	deadline chan bool
}

func (a *versionService) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	_, ok := ctx.Deadline()
	a.deadline <- ok
	return &runtimeapi.VersionResponse{RuntimeName: "test"}, nil
}

func serve(t *testing.T, socket string, a runtimeapi.RuntimeServiceServer) (stop func()) {
	return serveUpTo(t, socket, a, 16<<20) // as containerd
}

// serveUpTo serves a runtime whose messages have a maximum size.
func serveUpTo(t *testing.T, socket string, a runtimeapi.RuntimeServiceServer, size int) (stop func()) {
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer(grpc.MaxSendMsgSize(size))
	runtimeapi.RegisterRuntimeServiceServer(server, a)
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) })
	return func() { server.Stop(); group.Wait() }
}

func TestCallsAreBoundedAndObserved(t *testing.T) {
	socket, a := filepath.Join(t.TempDir(), "s"), &versionService{deadline: make(chan bool, 1)}
	defer serve(t, socket, a)()
	var seen []string
	client, err := cri.New(cri.Deps{
		Observe: func(method string, _ time.Duration, err error) { seen = append(seen, fmt.Sprint(method, err != nil)) },
	}, cri.Config{Endpoint: "unix://" + socket})
	require.NoError(t, err)
	defer client.Close()
	got, err := client.Version(context.Background(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	require.Equal(t, "test", got.RuntimeName)
	require.True(t, <-a.deadline, "a call without a deadline gets one")
	_, err = client.Status(context.Background(), &runtimeapi.StatusRequest{})
	require.True(t, cri.IsUnimplemented(err))
	require.Equal(t, []string{"Versionfalse", "Statustrue"}, seen)
}

// TestSpansOfCalls makes a call: its span names the method, and the runtime gets the span's identity.
func TestSpansOfCalls(t *testing.T) {
	socket, a := filepath.Join(t.TempDir(), "s"), &versionService{deadline: make(chan bool, 1)}
	defer serve(t, socket, a)()
	recorder := tracetest.NewSpanRecorder()
	client, err := cri.New(cri.Deps{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)),
	}, cri.Config{Endpoint: socket})
	require.NoError(t, err)
	defer client.Close()
	_, err = client.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	<-a.deadline
	require.Len(t, recorder.Ended(), 1)
	require.Equal(t, "runtime.v1.RuntimeService/Version", recorder.Ended()[0].Name())
}

func TestConnectionIsAnEvent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	client, err := cri.New(cri.Deps{}, cri.Config{Endpoint: socket})
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	changes := make(chan bool, 10)
	var group sync.WaitGroup
	group.Go(func() { _ = client.Watch(ctx, func(connected bool) { changes <- connected }) })
	require.False(t, <-changes)
	stop := serve(t, socket, &versionService{})
	require.True(t, <-changes)
	stop()
	require.False(t, <-changes)
	cancel()
	group.Wait()
}

// startingService is a runtime that refuses each call until it has read its own state, as containerd does.
type startingService struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	refused chan struct{}
	started atomic.Bool
}

func (s *startingService) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	if !s.started.Load() {
		select {
		case s.refused <- struct{}{}:
		default:
		}
		return nil, status.Error(codes.Unavailable, "server is not initialized yet")
	}
	return &runtimeapi.StatusResponse{}, nil
}

func TestARuntimeIsConnectedWhenItServes(t *testing.T) {
	socket, service := filepath.Join(t.TempDir(), "s"), &startingService{refused: make(chan struct{})}
	defer serve(t, socket, service)()
	client, err := cri.New(cri.Deps{}, cri.Config{Endpoint: socket})
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithCancel(t.Context())
	changes := make(chan bool, 10)
	var group sync.WaitGroup
	group.Go(func() { _ = client.Watch(ctx, func(connected bool) { changes <- connected }) })
	require.False(t, <-changes)
	<-service.refused
	<-service.refused
	require.Empty(t, changes)
	service.started.Store(true)
	require.True(t, <-changes)
	cancel()
	group.Wait()
}

func TestEndpointIsChecked(t *testing.T) {
	for _, endpoint := range []string{"", "relative.sock", "/" + strings.Repeat("x", 107)} {
		_, err := cri.New(cri.Deps{}, cri.Config{Endpoint: endpoint})
		require.ErrorContains(t, err, "container runtime endpoint", endpoint)
	}
}

func TestMessageOmitsPrefix(t *testing.T) {
	err := fmt.Errorf("run sandbox: %w", status.Error(codes.Unknown, "no network"))
	require.Equal(t, "run sandbox: no network", cri.Message(err))
	require.Equal(t, "plain", cri.Message(errors.New("plain")))
	require.True(t, cri.IsNotFound(fmt.Errorf("x: %w", status.Error(codes.NotFound, "gone"))))
}

// TestASocketWithoutCRIIsARuntimeThatIsAway: containerd serves the socket, but CRI is disabled. If it were taken for an
// old runtime, it would be polled forever, even after CRI is enabled.
func TestASocketWithoutCRIIsARuntimeThatIsAway(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) })
	client, err := cri.New(cri.Deps{}, cri.Config{Endpoint: "unix://" + socket})
	require.NoError(t, err)
	_, err = client.Version(t.Context(), &runtimeapi.VersionRequest{})
	requireAway := func() {
		t.Helper()
		require.ErrorContains(t, err, "disabled_plugins")
		require.ErrorContains(t, err, socket)
		require.True(t, cri.IsUnavailable(err))
		require.False(t, cri.IsUnimplemented(err))
	}
	requireAway()
	_, err = client.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	requireAway()
	events, err := client.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err == nil {
		_, err = events.Recv()
	}
	requireAway()

	// A call uses the previous connection until the client has noticed its end.
	watched, cancel := context.WithCancel(t.Context())
	changes := make(chan bool, 10)
	group.Go(func() { _ = client.Watch(watched, func(connected bool) { changes <- connected }) })
	for !<-changes { // a call may finish before the client reports the connection
	}
	server.Stop()
	require.False(t, <-changes)
	cancel()
	group.Wait()

	a := &versionService{deadline: make(chan bool, 1)}
	defer serve(t, socket, a)()
	defer client.Close()
	events, err = client.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	if err == nil {
		_, err = events.Recv()
	}
	require.True(t, cri.IsUnimplemented(err), "a missing method is a different error: %v", err)
}
