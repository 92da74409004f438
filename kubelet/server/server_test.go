package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/kubelet/server"
)

func TestWhoMayDoWhat(t *testing.T) {
	f := start(t)
	f.pairOfStranger(t)
	tests := []struct {
		user, method, path string
		header             []string
		want               int
		body               string
	}{
		{"", "GET", "/healthz", nil, 401, "Unauthorized"},
		{"", "GET", "/healthz", []string{"Authorization", "Bearer bad"}, 401, "Unauthorized"},
		{"", "GET", "/healthz", []string{"Authorization", "Bearer good"}, 200, "ok"},
		{"stranger", "GET", "/healthz", nil, 401, "Unauthorized"},
		{"admin", "GET", "/healthz", nil, 200, "ok"},
		{"reader", "GET", "/metrics", nil, 200, "kubelet_answer 0"},
		{"reader", "GET", "/metrics/processes/proxy", nil, 200, "proxy_answer 1"},
		{"reader", "GET", "/metrics/processes/none", nil, 404, ""},
		{"", "GET", "/metrics/processes/proxy", nil, 401, "Unauthorized"},
		{"reader", "GET", "/pods", nil, 403, "Forbidden (user=reader, verb=get, resource=nodes, subresource(s)=[pods proxy])"},
		{"reader", "POST", "/exec/ns/web/app?command=x&output=1", nil, 403, "verb=create"},
		{"reader", "GET", "/metrics/../exec/ns/web/app", nil, 307, ""},
		{"reader", "GET", "/metrics%2f..%2fpods", nil, 404, ""},
		{"admin", "GET", "/stats/summary", nil, 404, "not served by this version"},
		{"admin", "GET", "/nothing", nil, 404, ""},
		{"admin", "DELETE", "/pods", nil, 405, ""},
		{"admin", "GET", "/configz", nil, 200, `{"kubeletconfig":{"maxPods":110}}`},
	}
	for _, tt := range tests {
		t.Run(tt.user+" "+tt.method+" "+tt.path, func(t *testing.T) {
			code, body := f.do(t, tt.user, tt.method, tt.path, tt.header...)
			require.Equal(t, tt.want, code, body)
			require.Contains(t, body, tt.body)
		})
	}
	require.Equal(t, "n1", f.reviews[0].Name)
	require.Equal(t, "nodes", f.reviews[0].Resource)
}

// pairOfStranger writes a client certificate of another CA.
func (f *fixture) pairOfStranger(t *testing.T) {
	t.Helper()
	other := newAuthority(t)
	other.client(t, "stranger")
	for _, name := range []string{"stranger.crt", "stranger.key"} {
		data, err := os.ReadFile(other.path(name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(f.path(name), data, 0o600))
	}
}

func TestPods(t *testing.T) {
	f := start(t)
	for _, path := range []string{"/pods", "/pods/", "/runningpods/", "/runningpods"} {
		code, body := f.do(t, "admin", "GET", path)
		require.Equal(t, 200, code, body)
		var list corev1.PodList
		require.NoError(t, json.Unmarshal([]byte(body), &list))
		require.Equal(t, "PodList", list.Kind)
		require.Len(t, list.Items, 1)
		require.Equal(t, "web", list.Items[0].Name)
	}
}

func TestHealth(t *testing.T) {
	f := start(t, func(_ *server.Config, d *server.Deps) {
		d.Checks = []healthz.HealthChecker{healthz.NamedCheck("runtime", func(*http.Request) error {
			return errors.New("away")
		})}
	})
	for _, path := range []string{"/healthz", "/livez"} {
		code, body := f.do(t, "admin", "GET", path)
		require.Equal(t, 500, code)
		require.Contains(t, body, "[-]runtime failed")
		code, _ = f.do(t, "admin", "GET", path+"/ping")
		require.Equal(t, 200, code)
		code, _ = f.do(t, "reader", "GET", path)
		require.Equal(t, 403, code)
	}
}

// TestStatuszAndFlagz requests what upstream's tools read besides the metrics.
func TestStatuszAndFlagz(t *testing.T) {
	f := start(t, func(c *server.Config, d *server.Deps) {
		c.DebugFlags, d.Flags = true, map[string]string{"node-name": "n1"}
		d.Checks = []healthz.HealthChecker{healthz.NamedCheck("about", func(*http.Request) error { return nil })}
	})
	get := func(path, accept string) string {
		code, body := f.do(t, "admin", "GET", path, "Accept", accept)
		require.Equal(t, 200, code, body)
		return body
	}
	require.Contains(t, get("/statusz", "text/plain"), "kubelet statusz")
	require.Contains(t, get("/statusz", "text/plain"), "/configz")
	require.Regexp(t, "node-name.{1,3}n1", get("/flagz", "text/plain"), "what stands between them changes")
	get("/healthz", "*/*")
	require.Contains(t, get("/metrics/slis", "*/*"), `kubernetes_healthcheck{name="about",type="healthz"} 1`)

	before := klog.V(7).Enabled()
	require.False(t, before)
	code, body := f.send(t, "admin", "PUT", "/debug/flags/v", "7")
	var debugLogger klog.Level
	t.Cleanup(func() { require.NoError(t, debugLogger.Set("0")) })
	require.Equal(t, 200, code, body)
	require.Equal(t, "successfully set klog.logging.verbosity to 7", body)
	require.True(t, klog.V(7).Enabled())
	code, _ = f.send(t, "admin", "PUT", "/debug/flags/v", "much")
	require.Equal(t, 400, code)
	for _, path := range []string{"/statusz", "/flagz", "/metrics/slis", "/debug/flags/v"} {
		want := 403
		if path == "/metrics/slis" {
			want = 200 // a reader of metrics
		}
		code, body = f.do(t, "reader", "GET", path)
		require.Equal(t, want, code, path+": "+body)
	}
}

func TestFlagzWithoutFlags(t *testing.T) {
	code, body := start(t).do(t, "admin", "GET", "/flagz")
	require.Equal(t, 404, code, body)
}

func TestHealthOnLoopback(t *testing.T) {
	f := start(t, func(c *server.Config, _ *server.Deps) { c.HealthzAddress = "127.0.0.1:0" })
	for path, want := range map[string]int{"/healthz": 200, "/livez": 200, "/pods": 404, "/metrics": 404} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.server.Addrs()[1].String()+path, nil)
		require.NoError(t, err)
		resp, err := f.as(t, "").Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode, path)
	}
}

func TestLogs(t *testing.T) {
	f := start(t)
	var got *corev1.PodLogOptions
	var fail error
	f.host.logs = func(_ context.Context, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error {
		got = opts
		if fail != nil {
			return fail
		}
		for _, w := range []io.Writer{stdout, stderr} {
			if w != nil {
				_, _ = fmt.Fprintln(w, "line")
			}
		}
		return nil
	}
	two, ten := int64(2), int64(10)
	tests := []struct {
		path string
		fail error
		code int
		body string
		opts *corev1.PodLogOptions
	}{
		{path: "ns/web/app", code: 200, body: "line\nline\n", opts: &corev1.PodLogOptions{}},
		{
			path: "ns/web/app?follow=true&previous=true&timestamps=true&tailLines=2&sinceSeconds=10", code: 200,
			opts: &corev1.PodLogOptions{Follow: true, Previous: true, Timestamps: true, TailLines: &two, SinceSeconds: &ten},
		},
		{path: "ns/web/app?tail=2", code: 200, opts: &corev1.PodLogOptions{TailLines: &two}},
		{path: "ns/web/app?tail=all&tailLines=2", code: 200, opts: &corev1.PodLogOptions{}},
		{path: "ns/web/app?stream=Stdout", code: 200, body: "line\n"},
		{path: "ns/web/app?stream=Both", code: 422, body: "none of All, Stdout, Stderr"},
		{path: "ns/web/app?tailLines=-1", code: 422, body: "tailLines: -1 must not be negative"},
		{path: "ns/web/app?limitBytes=0", code: 422, body: "limitBytes"},
		{path: "ns/web/app?sinceSeconds=0", code: 422, body: "sinceSeconds"},
		{path: "ns/web/app?sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z", code: 422, body: "at most one"},
		{path: "ns/web/app?tailLines=x", code: 400, body: `"tailLines": "x" is not a number`},
		{path: "ns/web/app?follow=perhaps", code: 400, body: "neither true nor false"},
		{path: "ns/web/app?sinceTime=yesterday", code: 400, body: "sinceTime"},
		{path: "ns/none/app", code: 404, body: `pod "none" does not exist`},
		{path: "ns/web/none", code: 404, body: `container "none" not found in pod "web"`},
		{path: "ns/web/..%2f..%2fapp", code: 404},
		{path: "ns/web/app", fail: errors.New("container is waiting to start"), code: 400, body: "waiting to start"},
		{path: "ns/web/app", fail: fmt.Errorf("previous container: %w", server.ErrNotFound), code: 404},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			got, fail = nil, tt.fail
			code, body := f.do(t, "admin", "GET", "/containerLogs/"+tt.path)
			require.Equal(t, tt.code, code, body)
			require.Contains(t, body, tt.body)
			if tt.opts != nil {
				require.Equal(t, tt.opts, got)
			}
		})
	}
}

func TestFollowedLogArrivesLineByLineAndEndsWithServer(t *testing.T) {
	f := start(t)
	lines := make(chan string)
	f.host.logs = func(ctx context.Context, _ *corev1.PodLogOptions, stdout, _ io.Writer) error {
		for {
			select {
			case line := <-lines:
				_, _ = io.WriteString(stdout, line)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.base+"/containerLogs/ns/web/app?follow=true", nil)
	require.NoError(t, err)
	go func() { lines <- "one" }()
	resp, err := f.as(t, "admin").Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	buffer := make([]byte, 3)
	_, err = io.ReadFull(resp.Body, buffer)
	require.NoError(t, err)
	require.Equal(t, "one", string(buffer))
	lines <- "two"
	_, err = io.ReadFull(resp.Body, buffer)
	require.NoError(t, err)
	require.Equal(t, "two", string(buffer))
	f.stop()
}

// A failure after the response has begun cannot change its status, and is no part of the log.
func TestLogThatFailsAfterItsBeginning(t *testing.T) {
	f := start(t)
	f.host.logs = func(_ context.Context, _ *corev1.PodLogOptions, stdout, _ io.Writer) error {
		_, _ = stdout.Write(nil)
		return errors.New("input/output error")
	}
	code, body := f.do(t, "admin", "GET", "/containerLogs/ns/web/app?follow=true")
	require.Equal(t, http.StatusOK, code)
	require.Empty(t, body)
}

func TestDebuggingDisabled(t *testing.T) {
	f := start(t, func(c *server.Config, _ *server.Deps) { c.DisableDebugging = true })
	for _, path := range []string{
		"/exec/ns/web/app", "/attach/ns/web/app", "/portForward/ns/web", "/containerLogs/ns/web/app", "/run/ns/web/app",
		"/runningpods/", "/runningpods", "/logs/", "/debug/pprof/", "/debug/flags/v",
	} {
		code, body := f.do(t, "admin", "GET", path)
		require.Equal(t, 405, code)
		require.Contains(t, body, "Debug endpoints are disabled.")
	}
	code, _ := f.do(t, "admin", "GET", "/pods")
	require.Equal(t, 200, code)
}

func TestCertificatesAreReloaded(t *testing.T) {
	f := start(t)
	served := func() *x509.Certificate {
		conn, err := tls.Dial("tcp", f.server.Addrs()[0].String(), &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0]
	}
	before := served()
	next := f.serving(t)
	require.NotEqual(t, before.SerialNumber, next.SerialNumber)
	require.Equal(t, next.SerialNumber, served().SerialNumber)
	// A partly written pair does not interrupt the service.
	require.NoError(t, os.WriteFile(f.path("serving.key"), []byte("half"), 0o600))
	require.Equal(t, next.SerialNumber, served().SerialNumber)

	// Clients of a new CA are accepted at once.
	other := newAuthority(t)
	other.client(t, "admin")
	for _, name := range []string{"ca.crt", "admin.crt", "admin.key"} {
		data, err := os.ReadFile(other.path(name))
		require.NoError(t, err)
		require.NoError(t, os.Rename(f.path(name), f.path(name+".old")))
		require.NoError(t, os.WriteFile(f.path(name), data, 0o600))
	}
	code, body := f.do(t, "admin", "GET", "/healthz")
	require.Equal(t, 200, code, body)
	code, _ = f.do(t, "reader", "GET", "/metrics")
	require.Equal(t, 401, code, "the old CA no longer counts")
}

func TestListensOnAddressThatComesLater(t *testing.T) {
	f := start(t, func(c *server.Config, _ *server.Deps) {
		c.Addresses = append(c.Addresses, "192.0.2.77:0") // a documentation address: no interface has it
	})
	require.Len(t, f.server.Addrs(), 2)
	code, _ := f.do(t, "admin", "GET", "/healthz")
	require.Equal(t, 200, code)
}

// TestAddressesMove replaces an address while a log is followed on it.
func TestAddressesMove(t *testing.T) {
	f := start(t, func(c *server.Config, _ *server.Deps) {
		c.Addresses, c.HealthzAddress = []string{"127.0.0.1:0", "127.0.0.2:0"}, "127.0.0.1:0"
	})
	before := f.server.Addrs()
	require.Len(t, before, 3)
	reach := func(address net.Addr) error {
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address.String())
		if err != nil {
			return err
		}
		return connection.Close()
	}
	held, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", before[1].String())
	require.NoError(t, err)
	defer held.Close()
	speaks := tls.Client(held, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the server's identity does not matter here
	require.NoError(t, speaks.HandshakeContext(t.Context()))

	f.server.SetAddresses([]string{"127.0.0.3:0", "127.0.0.1:0"})
	require.Eventually(t, func() bool { return reach(before[1]) != nil }, time.Minute, time.Millisecond)
	after := f.server.Addrs()
	require.Len(t, after, 3)
	require.Equal(t, before[0], after[1], "what stays is left alone, and they are in the order wanted")
	require.Equal(t, before[2], after[2], "health too")
	require.Equal(t, "127.0.0.3", after[0].(*net.TCPAddr).IP.String())
	for _, address := range after {
		require.NoError(t, reach(address))
	}
	_, err = speaks.Write([]byte("GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n"))
	require.NoError(t, err)
	response := make([]byte, len("HTTP/1.1 401"))
	_, err = io.ReadFull(speaks, response)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 401", string(response), "a connection goes on")

	// An address that cannot be listened on does not affect the others.
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.4:0")
	require.NoError(t, err)
	defer taken.Close()
	f.server.SetAddresses([]string{taken.Addr().String(), "127.0.0.5:0"})
	require.Eventually(t, func() bool { return reach(before[0]) != nil }, time.Minute, time.Millisecond)
	after = f.server.Addrs()
	require.Len(t, after, 2)
	require.Equal(t, "127.0.0.5", after[0].(*net.TCPAddr).IP.String())
	require.NoError(t, reach(after[0]))
}

func TestStartErrors(t *testing.T) {
	f := start(t)
	auth, err := server.NewDelegatedAuth(server.AuthDeps{Client: f.api(t)}, server.AuthConfig{})
	require.NoError(t, err)
	deps := server.Deps{Host: f.host, Auth: auth}
	config := server.Config{
		NodeName: "n1", Addresses: []string{f.server.Addrs()[0].String()},
		CertFile: f.path("serving.crt"), KeyFile: f.path("serving.key"),
	}
	taken, err := server.New(deps, config)
	require.NoError(t, err)
	require.ErrorContains(t, taken.Start(t.Context()), "address already in use")

	config.CertFile = f.path("none.crt")
	absent, err := server.New(deps, config)
	require.NoError(t, err)
	require.ErrorContains(t, absent.Start(t.Context()), "load serving certificate")

	for want, change := range map[string]func(*server.Config, *server.Deps){
		"Config.NodeName":  func(c *server.Config, _ *server.Deps) { c.NodeName = "" },
		"Config.Addresses": func(c *server.Config, _ *server.Deps) { c.Addresses = nil },
		"missing port":     func(c *server.Config, _ *server.Deps) { c.Addresses = []string{"localhost"} },
		"Config.KeyFile":   func(c *server.Config, _ *server.Deps) { c.KeyFile = "" },
		"Deps.Host":        func(_ *server.Config, d *server.Deps) { d.Host = nil },
	} {
		c, d := config, deps
		change(&c, &d)
		_, err := server.New(d, c)
		require.ErrorContains(t, err, want)
	}
	_, err = server.NewDelegatedAuth(server.AuthDeps{Client: f.api(t)}, server.AuthConfig{ClientCAFile: f.path("none")})
	require.ErrorContains(t, err, "load client CA")
	_, err = server.NewDelegatedAuth(server.AuthDeps{Client: f.api(t)}, server.AuthConfig{ClientCAFile: f.path("serving.key")})
	require.ErrorContains(t, err, "no certificate in PEM form")
}
