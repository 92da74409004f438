package server_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-dev/berth/kubelet/server"
)

// TestConnectionsWithoutCredentialsAreBounded opens more connections than the server keeps of one address: the oldest are
// closed, that of an authenticated caller stays, and further callers are served.
func TestConnectionsWithoutCredentialsAreBounded(t *testing.T) {
	f := start(t)
	client := f.as(t, "admin")
	get := func(client *http.Client) int {
		resp, err := client.Get(f.base + "/pods")
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, http.StatusOK, get(client))
	client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("the connection of the authenticated caller was closed")
	}
	const flood, kept = 300, 64
	conns := make([]net.Conn, flood)
	for i := range conns {
		var err error
		conns[i], err = net.Dial("tcp", f.server.Addrs()[0].String())
		require.NoError(t, err)
		defer conns[i].Close()
	}
	for _, conn := range conns[:flood-kept] {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err := conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, isTimeout(err), "the server has closed connection: %v", err)
	}
	require.Equal(t, http.StatusOK, get(client))
	require.Equal(t, http.StatusOK, get(f.as(t, "admin")))
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // as net returns it
	return ok && timeout.Timeout()
}

// TestRequestsWithoutCredentialsEndTheirConnection sends a body that does not end: the response is immediate, and so is the end.
func TestRequestsWithoutCredentialsEndTheirConnection(t *testing.T) {
	f := start(t)
	conn, err := tls.Dial("tcp", f.server.Addrs()[0].String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, "POST /run/ns/web/app HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000000\r\nAuthorization: Bearer bad\r\n\r\ncmd=")
	require.NoError(t, err)
	response, err := io.ReadAll(conn)
	require.NoError(t, err, "read until the server ends the connection")
	require.Contains(t, string(response), "401 Unauthorized")

	conn, err = tls.Dial("tcp", f.server.Addrs()[0].String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /pods HTTP/1.1\r\nHost: node\r\nX: "+strings.Repeat("x", 1100<<10)+"\r\n\r\n")
	header := make([]byte, 64)
	n, err := io.ReadAtLeast(conn, header, 20)
	require.NoError(t, err)
	require.Contains(t, string(header[:n]), "431 Request Header Fields Too Large")
}

// TestHeadersWithoutCredentialsAreBoundedInAll sends headers that do not end, each of a size that is allowed.
func TestHeadersWithoutCredentialsAreBoundedInAll(t *testing.T) {
	const count, size, kept = 40, 1000 << 10, 32 << 20
	f := start(t)
	closed := make(chan struct{}, count)
	for range count {
		conn, err := tls.Dial("tcp", f.server.Addrs()[0].String(), &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer conn.Close()
		go func() {
			_, _ = io.WriteString(conn, "GET /pods HTTP/1.1\r\nHost: node\r\nX: "+strings.Repeat("x", size))
			_, _ = conn.Read(make([]byte, 1))
			closed <- struct{}{}
		}()
	}
	soon := time.After(20 * time.Second) // before the server ends them for their slowness
	for range count - kept/size {
		select {
		case <-closed:
		case <-soon:
			require.Fail(t, "the server holds too much")
		}
	}
	code, _ := f.do(t, "admin", "GET", "/pods")
	require.Equal(t, http.StatusOK, code)
}

// TestStreamsAreBounded opens as many streams as a Pod may have: a further one is refused until one ends.
func TestStreamsAreBounded(t *testing.T) {
	f := start(t, func(config *server.Config, _ *server.Deps) { config.MaxPodStreams = 2 })
	executor := f.executors(t, "/exec/ns/web/app?command=cat&input=1&output=1")["WebSocket"]
	type stream struct {
		in   *io.PipeWriter
		done chan error
	}
	open := func() stream {
		in, write := io.Pipe()
		read, out := io.Pipe()
		s := stream{in: write, done: make(chan error, 1)}
		go func() {
			err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out})
			_ = out.CloseWithError(io.EOF)
			s.done <- err
		}()
		go func() { _, _ = io.WriteString(write, "x") }()
		_, _ = io.ReadFull(read, make([]byte, 1)) // it runs, or is refused
		return s
	}
	first, second := open(), open()
	code, body := f.do(t, "admin", "POST", "/exec/ns/web/app?command=cat&output=1")
	require.Equal(t, http.StatusTooManyRequests, code)
	require.Equal(t, "2 exec, attach and port-forward streams to this Pod are open already: close some of them\n", body)
	require.NoError(t, first.in.Close())
	require.NoError(t, <-first.done)
	require.Eventually(t, func() bool {
		again := open()
		_ = again.in.Close()
		return <-again.done == nil
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, second.in.Close())
	require.NoError(t, <-second.done)
}
