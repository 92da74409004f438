package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fakeExec struct {
	resp *runtimeapi.ExecSyncResponse
	err  error
}

func (f fakeExec) ExecSync(context.Context, *runtimeapi.ExecSyncRequest, ...grpc.CallOption) (
	*runtimeapi.ExecSyncResponse, error,
) {
	return f.resp, f.err
}

func target(ip string) lifecycle.Target {
	return lifecycle.Target{
		Pod:       &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"}},
		Container: &corev1.Container{Name: "app"}, ContainerID: "c1", PodIP: ip,
	}
}

// hookCounts implements lifecycle.Metrics.
type hookCounts struct{ fallbacks, cutShort int }

func (c *hookCounts) HTTPFallback()  { c.fallbacks++ }
func (c *hookCounts) SleepCutShort() { c.cutShort++ }

func runner(t *testing.T, exec fakeExec, recorder record.EventRecorder) *lifecycle.Runner {
	t.Helper()
	r, err := lifecycle.NewRunner(lifecycle.Deps{Exec: exec, Recorder: recorder})
	require.NoError(t, err)
	return r
}

func TestExecHook(t *testing.T) {
	hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"drain", "-x"}}}
	require.NoError(t, runner(t, fakeExec{resp: &runtimeapi.ExecSyncResponse{}}, nil).Run(t.Context(), target(""), hook))

	var log bytes.Buffer
	logged, err := lifecycle.NewRunner(lifecycle.Deps{
		Exec:   fakeExec{resp: &runtimeapi.ExecSyncResponse{ExitCode: 7, Stdout: make([]byte, 16<<20), Stderr: []byte("password")}},
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	require.NoError(t, err)
	err = logged.Run(t.Context(), target(""), hook)
	require.EqualError(t, err, `run exec hook: command "drain -x" exited with 7`)
	var hookErr *lifecycle.Error
	require.ErrorAs(t, err, &hookErr)
	require.Contains(t, log.String(), "outputBytes=16777224")
	require.NotContains(t, log.String(), "password", "what a command prints may be a Secret")
	require.Less(t, log.Len(), 1<<10)

	away := errors.New("runtime away")
	require.ErrorIs(t, runner(t, fakeExec{err: away}, nil).Run(t.Context(), target(""), hook), away)
}

func httpHook(t *testing.T, server *httptest.Server, scheme corev1.URIScheme) (*corev1.LifecycleHandler, string) {
	t.Helper()
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	return &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "/stop", Port: intstr.FromInt(number), Scheme: scheme,
		HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: "secret"}},
	}}, host
}

func TestHTTPHookIgnoresStatus(t *testing.T) {
	var agent string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agent = r.Header.Get("User-Agent")
		w.WriteHeader(http.StatusInternalServerError)
	}))
	hook, host := httpHook(t, server, "")
	require.NoError(t, runner(t, fakeExec{}, nil).Run(t.Context(), target(host), hook))
	require.Equal(t, "kube-lifecycle/1.36", agent)
	server.Close()
	require.ErrorContains(t, runner(t, fakeExec{}, nil).Run(t.Context(), target(host), hook), "run httpGet hook")
}

// TestHTTPHookStaysOnItsHost lets the container redirect its hook: to itself that is followed, to another host it ends the hook.
func TestHTTPHookStaysOnItsHost(t *testing.T) {
	var away, followed atomic.Bool
	elsewhere, err := net.Listen("tcp", "127.0.0.2:0")
	require.NoError(t, err)
	other := &httptest.Server{Listener: elsewhere, Config: &http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { away.Store(true) }),
	}}
	other.Start()
	defer other.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("/stop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/next", http.StatusFound) })
	mux.HandleFunc("/next", func(w http.ResponseWriter, r *http.Request) {
		followed.Store(true)
		http.Redirect(w, r, other.URL, http.StatusFound)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	hook, host := httpHook(t, server, "")
	require.NoError(t, runner(t, fakeExec{}, nil).Run(t.Context(), target(host), hook))
	require.True(t, followed.Load(), "the same host")
	require.False(t, away.Load(), "the hook reached another host")
}

func TestHTTPSHookFallsBackToHTTP(t *testing.T) {
	var authorization []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		authorization = append(authorization, r.Header.Get("Authorization"))
	}))
	defer server.Close()
	recorder, counts := record.NewFakeRecorder(1), &hookCounts{}
	r, err := lifecycle.NewRunner(lifecycle.Deps{Exec: fakeExec{}, Recorder: recorder, Metrics: counts})
	require.NoError(t, err)
	hook, host := httpHook(t, server, corev1.URISchemeHTTPS)
	require.NoError(t, r.Run(t.Context(), target(host), hook))
	require.Equal(t, hookCounts{fallbacks: 1}, *counts)
	require.Equal(t, []string{""}, authorization, "credentials are not sent in the clear")
	require.Contains(t, <-recorder.Events, lifecycle.ReasonHTTPFallback)
}

func TestSleepHook(t *testing.T) {
	hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 30}}
	synctest.Test(t, func(t *testing.T) {
		counts := &hookCounts{}
		r, err := lifecycle.NewRunner(lifecycle.Deps{Exec: fakeExec{}, Metrics: counts})
		require.NoError(t, err)
		begin := time.Now()
		require.NoError(t, r.Run(t.Context(), target(""), hook))
		require.Equal(t, 30*time.Second, time.Since(begin))
		require.Zero(t, counts.cutShort)

		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begin = time.Now()
		require.ErrorContains(t, r.Run(ctx, target(""), hook), "before sleep hook finished")
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.Equal(t, hookCounts{cutShort: 1}, *counts)
	})
}

func TestOddHooks(t *testing.T) {
	r := runner(t, fakeExec{}, nil)
	require.NoError(t, r.Run(t.Context(), target(""), nil))
	require.ErrorContains(t, r.Run(t.Context(), target(""), &corev1.LifecycleHandler{}), "no handler")
	require.ErrorContains(t, r.Run(t.Context(), target(""), &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{}}),
		"tcpSocket is not supported")
	_, err := lifecycle.NewRunner(lifecycle.Deps{})
	require.ErrorContains(t, err, "Deps.Exec is required")
}
