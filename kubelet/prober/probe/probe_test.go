package probe_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/prober/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeout is for real connections: it must not pass on a slow machine.
const timeout = time.Minute

type fakeExec struct {
	got  *runtimeapi.ExecSyncRequest
	resp *runtimeapi.ExecSyncResponse
	err  error
}

func (f *fakeExec) ExecSync(_ context.Context, req *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption) (
	*runtimeapi.ExecSyncResponse, error,
) {
	f.got = req
	return f.resp, f.err
}

// target is a container whose port "web" is the server's, and the server's host.
func target(t *testing.T, address string) probe.Target {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	number, err := strconv.ParseInt(port, 10, 32)
	require.NoError(t, err)
	return probe.Target{ContainerID: "c1", PodIP: host, Container: &corev1.Container{
		Name:  "app",
		Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(number)}},
	}}
}

func TestExec(t *testing.T) {
	tests := []struct {
		name    string
		resp    *runtimeapi.ExecSyncResponse
		err     error
		want    probe.Result
		message string
		errText string
	}{
		{name: "exit 0", resp: &runtimeapi.ExecSyncResponse{Stdout: []byte("ok")}, want: probe.Success, message: "ok"},
		{
			name: "exit 3", resp: &runtimeapi.ExecSyncResponse{ExitCode: 3, Stdout: []byte("out"), Stderr: []byte("err")},
			want: probe.Failure, message: "outerr",
		},
		{
			name: "timeout", err: status.Error(codes.DeadlineExceeded, "slow"),
			want: probe.Failure, message: `command timed out: "check $(A)" timed out after 1m0s`,
		},
		{name: "runtime away", err: status.Error(codes.Unavailable, "away"), errText: `container "app"`},
		{
			name: "long output", resp: &runtimeapi.ExecSyncResponse{Stdout: []byte(strings.Repeat("x", 20<<10))},
			want: probe.Success, message: strings.Repeat("x", 10<<10),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exec := &fakeExec{resp: tt.resp, err: tt.err}
			result, message, err := probe.New(exec).Probe(t.Context(), corev1.ProbeHandler{
				Exec: &corev1.ExecAction{Command: []string{"check", "$(A)"}},
			}, probe.Target{ContainerID: "c1", Container: &corev1.Container{
				Name: "app", Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
			}}, timeout)
			require.Equal(t, []string{"check", "b"}, exec.got.Cmd)
			require.Equal(t, "c1", exec.got.ContainerId)
			require.EqualValues(t, 60, exec.got.Timeout)
			if tt.errText != "" {
				require.ErrorContains(t, err, tt.errText)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, result)
			require.Equal(t, tt.message, message)
		})
	}
}

func TestExecExpandsVariables(t *testing.T) {
	runner := &fakeExec{resp: &runtimeapi.ExecSyncResponse{}}
	target := probe.Target{Container: &corev1.Container{Env: []corev1.EnvVar{
		{Name: "A", Value: "1"},
		{Name: "B", Value: "$(A)2"},
		{Name: "S", ValueFrom: &corev1.EnvVarSource{}},
	}}}
	handler := corev1.ProbeHandler{Exec: &corev1.ExecAction{
		Command: []string{"$(A)", "x$(B)y", "$$(A)", "$(S)", "$(NO)", "$", "$(", "a$b"},
	}}
	_, _, err := probe.New(runner).Probe(t.Context(), handler, target, timeout)
	require.NoError(t, err)
	require.Equal(t, []string{"1", "x12y", "$(A)", "$(S)", "$(NO)", "$", "$(", "a$b"}, runner.got.Cmd)
}

func TestHTTP(t *testing.T) {
	var seen *http.Request
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(_ http.ResponseWriter, r *http.Request) { seen = r })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret", http.StatusTeapot) })
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://example.invalid/", http.StatusFound)
	})
	plain := httptest.NewServer(mux)
	defer plain.Close()
	secure := httptest.NewTLSServer(mux)
	defer secure.Close()

	tests := []struct {
		path    string
		scheme  corev1.URIScheme
		want    probe.Result
		message string
	}{
		{path: "/ok?a=b", want: probe.Success},
		{path: "/ok", scheme: corev1.URISchemeHTTPS, want: probe.Success},
		{path: "/bad", want: probe.Failure, message: "HTTP probe failed with statuscode: 418"},
		{path: "/here", want: probe.Success},
		{path: "/loop", want: probe.Failure, message: "stopped after 10 redirects"},
		{path: "/away", want: probe.Warning, message: "Probe terminated redirects"},
	}
	for _, tt := range tests {
		t.Run(string(tt.scheme)+tt.path, func(t *testing.T) {
			server := plain
			if tt.scheme == corev1.URISchemeHTTPS {
				server = secure
			}
			seen = nil
			result, message, err := probe.New(nil).Probe(t.Context(), corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: tt.path, Port: intstr.FromString("web"), Scheme: tt.scheme,
				HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "shop"}, {Name: "X-A", Value: "1"}},
			}}, target(t, server.Listener.Addr().String()), timeout)
			require.NoError(t, err)
			require.Equal(t, tt.want, result, message)
			require.Contains(t, message, tt.message)
			require.NotContains(t, message, "secret")
			if strings.HasPrefix(tt.path, "/ok") {
				require.Equal(t, "shop", seen.Host)
				require.Equal(t, "1", seen.Header.Get("X-A"))
				require.Equal(t, "kube-probe/1.36", seen.Header.Get("User-Agent"))
				require.Equal(t, "*/*", seen.Header.Get("Accept"))
			}
		})
	}
}

// TestHTTPSProbeSpeaksHTTP2 probes a server that accepts nothing else, as that of a gRPC application does.
func TestHTTPSProbeSpeaksHTTP2(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	result, message, err := probe.New(nil).Probe(t.Context(), corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Port: intstr.FromString("web"), Scheme: corev1.URISchemeHTTPS,
	}}, target(t, server.Listener.Addr().String()), timeout)
	require.NoError(t, err)
	require.Equal(t, probe.Success, result, message)
}

func TestHTTPTimeoutIsFailure(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	result, message, err := probe.New(nil).Probe(t.Context(), corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Port: intstr.FromString("web"),
	}}, target(t, server.Listener.Addr().String()), 20*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, probe.Failure, result)
	require.Contains(t, message, "Client.Timeout")
}

func TestNewHTTPRequest(t *testing.T) {
	container := &corev1.Container{Name: "app"}
	req, err := probe.NewHTTPRequest(t.Context(), &corev1.HTTPGetAction{
		Host: "::1", Path: "%zz", Port: intstr.FromInt32(80),
		HTTPHeaders: []corev1.HTTPHeader{{Name: "Accept", Value: ""}, {Name: "User-Agent", Value: "me"}},
	}, container, "10.0.0.1", "probe")
	require.NoError(t, err)
	require.Equal(t, &url.URL{Scheme: "http", Host: "[::1]:80", Path: "/%zz"}, req.URL)
	require.NotContains(t, req.Header, "Accept")
	require.Equal(t, "me", req.Header.Get("User-Agent"))

	_, err = probe.NewHTTPRequest(t.Context(), &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}, container, "", "probe")
	require.ErrorContains(t, err, "no address")
}

func TestResolvePort(t *testing.T) {
	container := &corev1.Container{Name: "app", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}
	tests := []struct {
		port intstr.IntOrString
		want int
	}{
		{intstr.FromInt32(80), 80},
		{intstr.FromString("web"), 8080},
		{intstr.FromString("81"), 81},
		{intstr.FromString("nope"), 0},
		{intstr.FromInt32(0), 0},
		{intstr.FromInt32(70000), 0},
	}
	for _, tt := range tests {
		got, err := probe.ResolvePort(tt.port, container)
		require.Equal(t, tt.want, got)
		require.Equal(t, tt.want == 0, err != nil, tt.port.String())
	}
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	handler := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}}
	result, _, err := probe.New(nil).Probe(t.Context(), handler, target(t, l.Addr().String()), timeout)
	require.NoError(t, err)
	require.Equal(t, probe.Success, result)
	require.NoError(t, l.Close())
	result, message, err := probe.New(nil).Probe(t.Context(), handler, target(t, unresponsiveAddress(t)), timeout)
	require.NoError(t, err)
	require.Equal(t, probe.Failure, result)
	require.Contains(t, message, "refused")
}

// unresponsiveAddress is an address without a listener, whose port stays taken while the test runs.
func unresponsiveAddress(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	bound, err := unix.Getsockname(fd)
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(bound.(*unix.SockaddrInet4).Port))
}

func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	checks := health.NewServer()
	checks.SetServingStatus("sick", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(server, checks)
	served := make(chan error)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Stop(); require.NoError(t, errors.Join(<-served)) }()

	tests := []struct {
		service *string
		want    probe.Result
		message string
	}{
		{nil, probe.Success, "service healthy"},
		{ptr.To("sick"), probe.Failure, "NOT_SERVING"},
		{ptr.To("unknown"), probe.Failure, "error: health rpc probe failed"},
	}
	target := target(t, l.Addr().String())
	for _, tt := range tests {
		result, message, err := probe.New(nil).Probe(t.Context(), corev1.ProbeHandler{GRPC: &corev1.GRPCAction{
			Port: target.Container.Ports[0].ContainerPort, Service: tt.service,
		}}, target, timeout)
		require.NoError(t, err)
		require.Equal(t, tt.want, result, message)
		require.Contains(t, message, tt.message)
	}
}

func TestGRPCWithoutHealthService(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	served := make(chan error)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Stop(); require.NoError(t, <-served) }()
	target := target(t, l.Addr().String())
	result, message, err := probe.New(nil).Probe(t.Context(), corev1.ProbeHandler{GRPC: &corev1.GRPCAction{
		Port: target.Container.Ports[0].ContainerPort,
	}}, target, timeout)
	require.NoError(t, err)
	require.Equal(t, probe.Failure, result)
	require.Contains(t, message, "does not implement the grpc health protocol")
}

func TestEmptyHandler(t *testing.T) {
	_, _, err := probe.New(nil).Probe(t.Context(), corev1.ProbeHandler{}, probe.Target{}, timeout)
	require.ErrorContains(t, err, "no handler")
}
