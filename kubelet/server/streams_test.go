package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/httpstream"
	restclient "k8s.io/client-go/rest"
	clientportforward "k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	streamcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/clock"
	"k8s.io/utils/exec"

	"github.com/berth-dev/berth/kubelet/server"
)

// fakeRuntime is a runtime with one running container "app" (ID c1) in a sandbox (ID s1), and a real stream server.
type fakeRuntime struct {
	streams    streaming.Server
	checkpoint func(*runtimeapi.CheckpointContainerRequest) error
}

func newRuntime(t *testing.T) *fakeRuntime {
	t.Helper()
	r := &fakeRuntime{}
	// The stream server must know its own address before it is created.
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	config := streaming.DefaultConfig
	config.Addr = raw.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: raw.Addr().String()}
	r.streams, err = streaming.NewServer(config, r2streams{})
	require.NoError(t, err)
	server := &httptest.Server{Listener: raw, Config: &http.Server{Handler: r.streams}}
	server.Start()
	t.Cleanup(server.Close)
	return r
}

// r2streams implements the streams of containers.
type r2streams struct{}

// Exec runs "cat", which copies stdin, "fail", which exits with 3, or any other command, which is written to both
// outputs.
func (r2streams) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool,
	resize <-chan streamcommand.TerminalSize,
) error {
	switch cmd[0] {
	case "cat":
		_, copyErr := io.Copy(out, in)
		return copyErr
	case "fail":
		return exec.CodeExitError{Err: fmt.Errorf("exit 3"), Code: 3}
	case "size":
		size := <-resize
		_, _ = fmt.Fprintf(out, "%t %dx%d", tty, size.Width, size.Height)
		return nil
	}
	_, _ = fmt.Fprintf(out, "%s ran %v", id, cmd)
	if err != nil {
		_, _ = io.WriteString(err, "warning")
	}
	return nil
}

func (r2streams) Attach(_ context.Context, id string, _ io.Reader, out, _ io.WriteCloser, tty bool,
	_ <-chan streamcommand.TerminalSize,
) error {
	_, _ = fmt.Fprintf(out, "attached to %s tty=%t", id, tty)
	return nil
}

func (r2streams) PortForward(_ context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	buffer := make([]byte, 4)
	if _, err := io.ReadFull(stream, buffer); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stream, "%s:%d says %s", id, port, buffer)
	return err
}

func (r *fakeRuntime) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest, _ ...grpc.CallOption) (
	*runtimeapi.ListContainersResponse, error,
) {
	labels := map[string]string{
		"io.kubernetes.pod.uid": "u1", "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "ns",
		"io.kubernetes.container.name": "app",
	}
	response := &runtimeapi.ListContainersResponse{}
	for key, value := range req.Filter.LabelSelector {
		if labels[key] != value {
			return response, nil
		}
	}
	response.Containers = []*runtimeapi.Container{{Id: "old", CreatedAt: 1, Labels: labels}, {Id: "c1", CreatedAt: 2, Labels: labels}}
	if req.Filter.LabelSelector == nil {
		response.Containers = response.Containers[1:]
		response.Containers = append(response.Containers, &runtimeapi.Container{Id: "foreign"})
	}
	return response, nil
}

func (r *fakeRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest, ...grpc.CallOption) (
	*runtimeapi.ListPodSandboxResponse, error,
) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "s1"}}}, nil
}

func (r *fakeRuntime) ExecSync(_ context.Context, req *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption) (
	*runtimeapi.ExecSyncResponse, error,
) {
	if req.Cmd[0] == "fail" {
		return &runtimeapi.ExecSyncResponse{ExitCode: 3, Stderr: []byte("sorry")}, nil
	}
	return &runtimeapi.ExecSyncResponse{Stdout: []byte(strings.Join(req.Cmd, "|"))}, nil
}

func (r *fakeRuntime) Exec(_ context.Context, req *runtimeapi.ExecRequest, _ ...grpc.CallOption) (
	*runtimeapi.ExecResponse, error,
) {
	if req.Cmd[0] == "gone" {
		return nil, status.Error(codes.NotFound, "container is gone")
	}
	return r.streams.GetExec(req)
}

func (r *fakeRuntime) Attach(_ context.Context, req *runtimeapi.AttachRequest, _ ...grpc.CallOption) (
	*runtimeapi.AttachResponse, error,
) {
	return r.streams.GetAttach(req)
}

func (r *fakeRuntime) CheckpointContainer(_ context.Context, req *runtimeapi.CheckpointContainerRequest, _ ...grpc.CallOption) (
	*runtimeapi.CheckpointContainerResponse, error,
) {
	return &runtimeapi.CheckpointContainerResponse{}, r.checkpoint(req)
}

func (r *fakeRuntime) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest, _ ...grpc.CallOption) (
	*runtimeapi.PortForwardResponse, error,
) {
	return r.streams.GetPortForward(req)
}

func (f *fixture) rest() *restclient.Config {
	return &restclient.Config{Host: f.base, TLSClientConfig: restclient.TLSClientConfig{
		CAFile: f.path("ca.crt"), CertFile: f.path("admin.crt"), KeyFile: f.path("admin.key"),
	}}
}

// executors returns executors for both protocols of remote commands.
func (f *fixture) executors(t *testing.T, path string) map[string]remotecommand.Executor {
	t.Helper()
	location, err := url.Parse(f.base + path)
	require.NoError(t, err)
	old, err := remotecommand.NewSPDYExecutor(f.rest(), "POST", location)
	require.NoError(t, err)
	web, err := remotecommand.NewWebSocketExecutor(f.rest(), "GET", location.String())
	require.NoError(t, err)
	return map[string]remotecommand.Executor{"SPDY": old, "WebSocket": web}
}

func TestExec(t *testing.T) {
	f := start(t)
	for name, executor := range f.executors(t, "/exec/ns/web/app?command=echo&command=hi&output=1&error=1") {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
			require.NoError(t, err)
			require.Equal(t, "c1 ran [echo hi]", out.String())
			require.Equal(t, "warning", errOut.String())
		})
	}
	// As long as the longest argument of a program, 128 KiB, each byte of which the URL may encode in three.
	for name, executor := range f.executors(t, "/exec/ns/web/app?command=echo&command="+strings.Repeat("%0A", 128<<10-1)+"&output=1") {
		t.Run(name+" long command", func(t *testing.T) {
			var out bytes.Buffer
			err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out})
			require.NoError(t, err)
			require.Len(t, out.String(), len("c1 ran [echo ]")+(128<<10-1))
		})
	}
	for name, executor := range f.executors(t, "/exec/ns/web/u1/app?command=cat&input=1&output=1") {
		t.Run(name+" stdin", func(t *testing.T) {
			var out bytes.Buffer
			big := strings.Repeat("0123456789", 50_000)
			err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{
				Stdin: strings.NewReader(big), Stdout: &out,
			})
			require.NoError(t, err)
			require.Equal(t, big, out.String())
		})
	}
	for name, executor := range f.executors(t, "/exec/ns/web/app?command=fail&output=1") {
		t.Run(name+" exit code", func(t *testing.T) {
			err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
			var exit utilexec.CodeExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 3, exit.Code)
		})
	}
	for name, executor := range f.executors(t, "/exec/ns/web/app?command=size&output=1&tty=1") {
		t.Run(name+" terminal", func(t *testing.T) {
			var out bytes.Buffer
			sizes := make(sizeQueue, 1)
			sizes <- remotecommand.TerminalSize{Width: 80, Height: 24}
			defer close(sizes)
			err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{
				Stdout: &out, Tty: true, TerminalSizeQueue: sizes,
			})
			require.NoError(t, err)
			require.Equal(t, "true 80x24", out.String())
		})
	}
}

type sizeQueue chan remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	size, ok := <-q
	if !ok {
		return nil
	}
	return &size
}

func TestAttach(t *testing.T) {
	f := start(t)
	for name, executor := range f.executors(t, "/attach/ns/web/app?output=1") {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out}))
			require.Equal(t, "attached to c1 tty=false", out.String())
		})
	}
}

func TestBadStreamRequests(t *testing.T) {
	f := start(t)
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "SPDY/3.1"}
	tests := []struct {
		path string
		want int
		body string
	}{
		{"/exec/ns/web/app?command=x", 400, "at least 1 of stdin, stdout, stderr"},
		{"/exec/ns/web/app?output=1", 400, "you must specify a command"},
		{"/exec/ns/none/app?command=x&output=1", 404, `pod "none"`},
		{"/exec/ns/web/none?command=x&output=1", 404, `container "none"`},
		{"/exec/ns/web/u2/app?command=x&output=1", 404, `UID "u2"`},
		{"/exec/ns/web/tty?command=x&output=1", 404, "not running"},
		{"/exec/ns/web/app?command=gone&output=1", 404, "container is gone"},
		{"/attach/ns/web/app", 400, "at least 1 of"},
		{"/attach/ns/web/tty?output=1", 404, "not running"},
		{"/portForward/ns/none", 404, `pod "none"`},
		{"/portForward/ns/web/u2", 404, `UID "u2"`},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			code, body := f.do(t, "admin", "POST", tt.path, upgrade...)
			require.Equal(t, tt.want, code, body)
			require.Contains(t, body, tt.body)
		})
	}
	code, body := f.do(t, "admin", "POST", "/exec/ns/web/app?command=x&output=1")
	require.Equal(t, 400, code, body)
	require.Contains(t, body, "pgrade")
}

func TestRun(t *testing.T) {
	f := start(t)
	code, body := f.do(t, "admin", "POST", "/run/ns/web/app?cmd=ls+-l")
	require.Equal(t, 200, code)
	require.Equal(t, "ls|-l", body)
	code, body = f.do(t, "admin", "POST", "/run/ns/web/mirror-of-u1/app?cmd=ls")
	require.Equal(t, 200, code, body)
	code, body = f.do(t, "admin", "POST", "/run/ns/web/u1/app?cmd=fail")
	require.Equal(t, 500, code)
	require.Contains(t, body, "exited with 3: sorry")
	code, _ = f.do(t, "admin", "POST", "/run/ns/web/app")
	require.Equal(t, 400, code)
}

// dialers returns dialers for both protocols of port forwarding.
func (f *fixture) dialers(t *testing.T) map[string]httpstream.Dialer {
	t.Helper()
	location, err := url.Parse(f.base + "/portForward/ns/web")
	require.NoError(t, err)
	transport, upgrader, err := spdy.RoundTripperFor(f.rest())
	require.NoError(t, err)
	web, err := clientportforward.NewSPDYOverWebsocketDialer(location, f.rest())
	require.NoError(t, err)
	return map[string]httpstream.Dialer{
		"SPDY":      spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", location),
		"WebSocket": web,
	}
}

// TestTranslatedWebSocketsAreCounted has a stream of each protocol: upstream counts those of WebSockets.
func TestTranslatedWebSocketsAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	f := start(t, func(_ *server.Config, deps *server.Deps) {
		deps.RequestMetrics = server.NewRequestMetrics(registry, clock.RealClock{})
	})
	for _, path := range []string{"/exec/ns/web/app?command=echo&output=1", "/attach/ns/web/app?output=1"} {
		for _, executor := range f.executors(t, path) {
			require.NoError(t, executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}))
		}
	}
	for _, dialer := range f.dialers(t) {
		forward(t, dialer)
	}
	const name = "kubelet_websocket_streaming_requests_total"
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP `+name+` Requests of WebSockets whose streams the kubelet translates for the runtime, by subresource.
# TYPE `+name+` counter
`+name+`{subresource="attach"} 1
`+name+`{subresource="exec"} 1
`+name+`{subresource="portforward"} 1
`), name))
}

func TestPortForward(t *testing.T) {
	f := start(t)
	for name, dialer := range f.dialers(t) {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, "s1:8080 says ping", forward(t, dialer))
		})
	}
}

// forward sends "ping" through a local port to port 8080 of the Pod and returns the response.
func forward(t *testing.T, dialer httpstream.Dialer) string {
	t.Helper()
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := clientportforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready,
		io.Discard, io.Discard)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		require.NoError(t, err)
	}
	ports, err := forwarder.GetPorts()
	require.NoError(t, err)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	require.NoError(t, err)
	_, err = io.WriteString(conn, "ping")
	require.NoError(t, err)
	response, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	close(stop)
	require.NoError(t, <-done)
	return string(response)
}
