package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/kubelet/server"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Started by the import of the API server's libraries, for the life of the process.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// The SPDY library lets a closed connection linger for the peer's last frames.
		goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key, a.cert = issue(t, nil, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	a.write(t, "ca.crt", "CERTIFICATE", a.cert.Raw)
	return a
}

var serial int64

func issue(t *testing.T, ca *x509.Certificate, caKey *ecdsa.PrivateKey, template *x509.Certificate) (
	*ecdsa.PrivateKey, *x509.Certificate,
) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial++
	template.SerialNumber = big.NewInt(serial)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if ca == nil {
		ca, caKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return key, cert
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	// Replaced by rename, as certificate managers do.
	tmp := filepath.Join(a.dir, name+".tmp")
	require.NoError(t, os.WriteFile(tmp, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	require.NoError(t, os.Rename(tmp, filepath.Join(a.dir, name)))
}

// pair writes NAME.crt and NAME.key.
func (a *authority) pair(t *testing.T, name string, template *x509.Certificate) *x509.Certificate {
	t.Helper()
	key, cert := issue(t, a.cert, a.key, template)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	a.write(t, name+".crt", "CERTIFICATE", cert.Raw)
	a.write(t, name+".key", "PRIVATE KEY", der)
	return cert
}

func (a *authority) serving(t *testing.T) *x509.Certificate {
	t.Helper()
	return a.pair(t, "serving", &x509.Certificate{
		Subject: pkix.Name{CommonName: "node"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

func (a *authority) client(t *testing.T, user string) {
	t.Helper()
	a.pair(t, user, &x509.Certificate{
		Subject: pkix.Name{CommonName: user}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// fakeHost has two Pods' worth of answers.
type fakeHost struct {
	*server.RuntimeHost
	pods []*corev1.Pod
	logs func(ctx context.Context, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error
}

var _ server.Host = (*fakeHost)(nil)

func (h *fakeHost) GetPods() []*corev1.Pod { return h.pods }

func (h *fakeHost) GetPodByName(namespace, name string) (*corev1.Pod, bool) {
	for _, pod := range h.pods {
		if pod.Namespace == namespace && pod.Name == name {
			return pod, true
		}
	}
	return nil, false
}

func (h *fakeHost) ContainerLogs(
	ctx context.Context, _ *corev1.Pod, _ string, opts *corev1.PodLogOptions, stdout, stderr io.Writer,
) error {
	return h.logs(ctx, opts, stdout, stderr)
}

// bench is a running server. The user "admin" may do everything, "reader" may get nodes/metrics, others nothing.
type bench struct {
	*authority
	server  *server.Server
	host    *fakeHost
	runtime *fakeRuntime
	mu      sync.Mutex // guards reviews
	reviews []authorizationv1.ResourceAttributes
	base    string
	stop    func()
}

func start(t *testing.T, change ...func(*server.Config, *server.Deps)) *bench {
	t.Helper()
	b := &bench{authority: newAuthority(t), runtime: newRuntime(t)}
	b.serving(t)
	b.client(t, "admin")
	b.client(t, "reader")
	b.host = &fakeHost{
		RuntimeHost: server.NewRuntimeHost(b.runtime),
		pods: []*corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u1"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "tty", TTY: true}}},
		}},
	}
	auth, err := server.NewDelegatedAuth(server.AuthConfig{ClientCAFile: b.path("ca.crt")}, b.api(t), nil)
	require.NoError(t, err)
	cfg := server.Config{
		NodeName: "n1", Addresses: []string{"127.0.0.1:0"},
		CertFile: b.path("serving.crt"), KeyFile: b.path("serving.key"),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_answer"}))
	deps := server.Deps{
		Host: b.host, Auth: auth, Metrics: registry,
		Configz: func() map[string]any { return map[string]any{"kubeletconfig": map[string]any{"maxPods": 110}} },
	}
	for _, c := range change {
		c(&cfg, &deps)
	}
	b.server, err = server.New(cfg, deps)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.server.Start(ctx) }()
	select {
	case <-b.server.Ready():
	case err := <-done:
		require.NoError(t, err)
	}
	b.base = "https://" + b.server.Addrs()[0].String()
	stopped := false
	b.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(b.stop)
	return b
}

// api is a client of an API server that knows the token "good" as admin.
func (b *bench) api(t *testing.T) kubernetes.Interface {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.Status.Authenticated = review.Spec.Token == "good"
		review.Status.User.Username = "admin"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		attributes := review.Spec.ResourceAttributes
		b.mu.Lock()
		b.reviews = append(b.reviews, *attributes)
		b.mu.Unlock()
		review.Status.Allowed = review.Spec.User == "admin" ||
			review.Spec.User == "reader" && attributes.Subresource == "metrics" && attributes.Verb == "get"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	})
	api := httptest.NewServer(mux)
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&restclient.Config{
		Host: api.URL, ContentConfig: restclient.ContentConfig{ContentType: "application/json"},
	})
	require.NoError(t, err)
	return client
}

// as is an HTTP client with that user's certificate; an empty user has none.
func (b *bench) as(t *testing.T, user string) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(b.cert)
	config := &tls.Config{RootCAs: roots}
	if user != "" {
		cert, err := tls.LoadX509KeyPair(b.path(user+".crt"), b.path(user+".key"))
		require.NoError(t, err)
		config.Certificates = []tls.Certificate{cert}
	}
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

func (b *bench) do(t *testing.T, user, method, path string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.base+path, nil)
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := b.as(t, user).Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func TestWhoMayDoWhat(t *testing.T) {
	b := start(t)
	b.pairOfStranger(t)
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
			code, body := b.do(t, tt.user, tt.method, tt.path, tt.header...)
			require.Equal(t, tt.want, code, body)
			require.Contains(t, body, tt.body)
		})
	}
	require.Equal(t, "n1", b.reviews[0].Name)
	require.Equal(t, "nodes", b.reviews[0].Resource)
}

// pairOfStranger writes a client certificate of another CA.
func (b *bench) pairOfStranger(t *testing.T) {
	t.Helper()
	other := newAuthority(t)
	other.client(t, "stranger")
	for _, name := range []string{"stranger.crt", "stranger.key"} {
		data, err := os.ReadFile(other.path(name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(b.path(name), data, 0o600))
	}
}

func TestPods(t *testing.T) {
	b := start(t)
	for _, path := range []string{"/pods", "/pods/", "/runningpods/", "/runningpods"} {
		code, body := b.do(t, "admin", "GET", path)
		require.Equal(t, 200, code, body)
		var list corev1.PodList
		require.NoError(t, json.Unmarshal([]byte(body), &list))
		require.Equal(t, "PodList", list.Kind)
		require.Len(t, list.Items, 1)
		require.Equal(t, "web", list.Items[0].Name)
	}
}

func TestHealth(t *testing.T) {
	b := start(t, func(_ *server.Config, d *server.Deps) {
		d.Checks = []healthz.HealthChecker{healthz.NamedCheck("runtime", func(*http.Request) error {
			return errors.New("away")
		})}
	})
	code, body := b.do(t, "admin", "GET", "/healthz")
	require.Equal(t, 500, code)
	require.Contains(t, body, "[-]runtime failed")
}

func TestLogs(t *testing.T) {
	b := start(t)
	var got *corev1.PodLogOptions
	var fail error
	b.host.logs = func(_ context.Context, opts *corev1.PodLogOptions, stdout, stderr io.Writer) error {
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
			code, body := b.do(t, "admin", "GET", "/containerLogs/"+tt.path)
			require.Equal(t, tt.code, code, body)
			require.Contains(t, body, tt.body)
			if tt.opts != nil {
				require.Equal(t, tt.opts, got)
			}
		})
	}
}

func TestFollowedLogArrivesLineByLineAndEndsWithServer(t *testing.T) {
	b := start(t)
	lines := make(chan string)
	b.host.logs = func(ctx context.Context, _ *corev1.PodLogOptions, stdout, _ io.Writer) error {
		for {
			select {
			case line := <-lines:
				_, _ = io.WriteString(stdout, line)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.base+"/containerLogs/ns/web/app?follow=true", nil)
	require.NoError(t, err)
	go func() { lines <- "one" }()
	resp, err := b.as(t, "admin").Do(req)
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
	b.stop()
}

func TestDebuggingDisabled(t *testing.T) {
	b := start(t, func(c *server.Config, _ *server.Deps) { c.DisableDebugging = true })
	for _, path := range []string{"/exec/ns/web/app", "/containerLogs/ns/web/app", "/run/ns/web/app", "/runningpods/"} {
		code, body := b.do(t, "admin", "GET", path)
		require.Equal(t, 405, code)
		require.Contains(t, body, "Debug endpoints are disabled.")
	}
	code, _ := b.do(t, "admin", "GET", "/pods")
	require.Equal(t, 200, code)
}

func TestCertificatesAreReloaded(t *testing.T) {
	b := start(t)
	served := func() *x509.Certificate {
		conn, err := tls.Dial("tcp", b.server.Addrs()[0].String(), &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0]
	}
	before := served()
	next := b.serving(t)
	require.NotEqual(t, before.SerialNumber, next.SerialNumber)
	require.Equal(t, next.SerialNumber, served().SerialNumber)
	// A half-written pair does not stop the service.
	require.NoError(t, os.WriteFile(b.path("serving.key"), []byte("half"), 0o600))
	require.Equal(t, next.SerialNumber, served().SerialNumber)

	// A new client CA lets its clients in at once.
	other := newAuthority(t)
	other.client(t, "admin")
	for _, name := range []string{"ca.crt", "admin.crt", "admin.key"} {
		data, err := os.ReadFile(other.path(name))
		require.NoError(t, err)
		require.NoError(t, os.Rename(b.path(name), b.path(name+".old")))
		require.NoError(t, os.WriteFile(b.path(name), data, 0o600))
	}
	code, body := b.do(t, "admin", "GET", "/healthz")
	require.Equal(t, 200, code, body)
	code, _ = b.do(t, "reader", "GET", "/metrics")
	require.Equal(t, 401, code, "the old CA no longer counts")
}

func TestListensOnAddressThatComesLater(t *testing.T) {
	b := start(t, func(c *server.Config, _ *server.Deps) {
		c.Addresses = append(c.Addresses, "192.0.2.77:0") // a documentation address: no interface has it
	})
	require.Len(t, b.server.Addrs(), 2)
	code, _ := b.do(t, "admin", "GET", "/healthz")
	require.Equal(t, 200, code)
}

func TestStartErrors(t *testing.T) {
	b := start(t)
	auth, err := server.NewDelegatedAuth(server.AuthConfig{}, b.api(t), nil)
	require.NoError(t, err)
	deps := server.Deps{Host: b.host, Auth: auth}
	cfg := server.Config{
		NodeName: "n1", Addresses: []string{b.server.Addrs()[0].String()},
		CertFile: b.path("serving.crt"), KeyFile: b.path("serving.key"),
	}
	taken, err := server.New(cfg, deps)
	require.NoError(t, err)
	require.ErrorContains(t, taken.Start(t.Context()), "address already in use")

	cfg.CertFile = b.path("none.crt")
	absent, err := server.New(cfg, deps)
	require.NoError(t, err)
	require.ErrorContains(t, absent.Start(t.Context()), "load serving certificate")

	for want, change := range map[string]func(*server.Config, *server.Deps){
		"Config.NodeName":  func(c *server.Config, _ *server.Deps) { c.NodeName = "" },
		"Config.Addresses": func(c *server.Config, _ *server.Deps) { c.Addresses = nil },
		"missing port":     func(c *server.Config, _ *server.Deps) { c.Addresses = []string{"localhost"} },
		"Config.KeyFile":   func(c *server.Config, _ *server.Deps) { c.KeyFile = "" },
		"Deps.Host":        func(_ *server.Config, d *server.Deps) { d.Host = nil },
	} {
		c, d := cfg, deps
		change(&c, &d)
		_, err := server.New(c, d)
		require.ErrorContains(t, err, want)
	}
	_, err = server.NewDelegatedAuth(server.AuthConfig{ClientCAFile: b.path("none")}, b.api(t), nil)
	require.ErrorContains(t, err, "load client CA")
	_, err = server.NewDelegatedAuth(server.AuthConfig{ClientCAFile: b.path("serving.key")}, b.api(t), nil)
	require.ErrorContains(t, err, "no certificate in PEM form")
}
