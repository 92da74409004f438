package contain_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/contain"
)

var errCause = errors.New("cause")

func TestDoReturnsAPanicAsTheErrorOfItsObject(t *testing.T) {
	require.NoError(t, contain.Do("mount", "ns/pod", func() error { return nil }))
	require.Equal(t, errCause, contain.Do("mount", "ns/pod", func() error { return errCause }))

	before := panicsAt(t, "mount a test volume")
	err := contain.Do("mount a test volume", "ns/pod", func() error { panic(errCause) })
	var panicked *contain.PanicError
	require.ErrorAs(t, err, &panicked)
	require.ErrorIs(t, err, errCause)
	require.EqualError(t, err, "mount a test volume of ns/pod panicked: cause")
	require.Contains(t, string(panicked.Stack), "contain_test.go", "the stack shows where")
	require.Equal(t, before+1, panicsAt(t, "mount a test volume"))

	var missing map[string]int
	err = contain.Do("index", "", func() error { missing["a"]++; return nil })
	require.EqualError(t, err, "index panicked: assignment to entry in nil map")
}

// panicsAt returns how many panics of the site this process has counted.
func panicsAt(t *testing.T, site string) (count float64) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(contain.Metrics())
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.Metric {
			if metric.Label[0].GetValue() == site {
				count = metric.GetCounter().GetValue()
			}
		}
	}
	return count
}

func TestGuardAndRecoverSwallowAPanic(t *testing.T) {
	contain.Guard("report", "pod", func() { panic("no") })()
	func() {
		defer contain.Recover("report", "pod")
		panic("no")
	}()
	require.Error(t, contain.Func("report", "pod", func() error { panic("no") })())
}

// TestLoopStartsAgain panics three times, then works until its context ends.
func TestLoopStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var runs []time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			contain.Loop(ctx, "watch", "", func(ctx context.Context) {
				runs = append(runs, time.Since(began))
				if len(runs) <= 3 {
					panic("no")
				}
				<-ctx.Done()
			})()
		}()
		time.Sleep(time.Hour)
		cancel()
		<-done
		require.Equal(t, []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}, runs)
	})
	synctest.Test(t, func(t *testing.T) { // the delay ends with the context
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		contain.Loop(ctx, "watch", "", func(context.Context) { panic("no") })()
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

func TestHandlerRespondsWithAnError(t *testing.T) {
	server := httptest.NewServer(contain.Handler("test server", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panic":
			panic("no")
		case "/abort":
			panic(http.ErrAbortHandler)
		}
	})))
	defer server.Close()
	get := func(path string) (int, error) {
		response, err := server.Client().Get(server.URL + path)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	code, err := get("/panic")
	require.NoError(t, err)
	require.Equal(t, http.StatusInternalServerError, code)
	_, err = get("/abort")
	require.Error(t, err, "the handler wants the connection to end")
	code, err = get("/fine")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
}

func TestServeEndsWithItsContext(t *testing.T) {
	listen := func() net.Listener {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
		require.NoError(t, err)
		return listener
	}
	ctx, cancel := context.WithCancel(t.Context())
	listener, ended := listen(), make(chan error, 1)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { ended <- contain.Serve(ctx, "serve", server, listener) }()
	connection, err := grpc.NewClient("unix:"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, connection.Close()) }()
	_, err = grpc_health_v1.NewHealthClient(connection).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-ended)

	closed := listen()
	require.NoError(t, closed.Close())
	require.Error(t, contain.Serve(t.Context(), "serve", grpc.NewServer(), closed), "the listener cannot accept")
}

// panickingHealth panics in a call and in a stream.
type panickingHealth struct {
	*health.Server
}

func (panickingHealth) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	panic("secret")
}

func (panickingHealth) Watch(*grpc_health_v1.HealthCheckRequest, grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	panic("secret")
}

func TestServerOptionsFailTheCall(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer(contain.ServerOptions("test server")...)
	grpc_health_v1.RegisterHealthServer(server, panickingHealth{health.NewServer()})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	for range 2 { // the server serves on
		_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.Equal(t, codes.Internal, status.Code(err))
		require.NotContains(t, err.Error(), "secret", "the client does not see what panicked")
		stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.Internal, status.Code(err))
	}
}
