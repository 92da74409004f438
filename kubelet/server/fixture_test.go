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
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/kubelet/server"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Importing the API server's libraries starts it for the life of the process.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// The SPDY library keeps a closed connection for the peer's last frames.
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

// fakeHost is a Host with the given Pods and logs.
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

// ResolvePodUID knows one mirror Pod.
func (h *fakeHost) ResolvePodUID(uid types.UID) types.UID {
	if uid == "mirror-of-u1" {
		return "u1"
	}
	return uid
}

func (h *fakeHost) ContainerLogs(
	ctx context.Context, _ *corev1.Pod, _ string, opts *corev1.PodLogOptions, stdout, stderr io.Writer,
) error {
	return h.logs(ctx, opts, stdout, stderr)
}

func (h *fakeHost) Checkpoint(ctx context.Context, pod *corev1.Pod, container string, timeout time.Duration) (string, error) {
	const path = "/checkpoints/one.tar"
	return path, h.CheckpointTo(ctx, pod, container, path, timeout)
}

// fixture is a running server. The user "admin" may do everything, "reader" may get nodes/metrics, others nothing.
type fixture struct {
	*authority
	server  *server.Server
	host    *fakeHost
	runtime *fakeRuntime
	mu      sync.Mutex // guards reviews
	reviews []authorizationv1.ResourceAttributes
	base    string
	stop    func()
}

func start(t *testing.T, change ...func(*server.Config, *server.Deps)) *fixture {
	t.Helper()
	f := &fixture{authority: newAuthority(t), runtime: newRuntime(t)}
	f.serving(t)
	f.client(t, "admin")
	f.client(t, "reader")
	f.host = &fakeHost{
		RuntimeHost: server.NewRuntimeHost(f.runtime),
		pods: []*corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u1"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "tty", TTY: true}}},
		}},
	}
	auth, err := server.NewDelegatedAuth(server.AuthDeps{Client: f.api(t)}, server.AuthConfig{ClientCAFile: f.path("ca.crt")})
	require.NoError(t, err)
	config := server.Config{
		NodeName: "n1", Addresses: []string{"127.0.0.1:0"},
		CertFile: f.path("serving.crt"), KeyFile: f.path("serving.key"),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_answer"}))
	deps := server.Deps{
		Host: f.host, Auth: auth, Metrics: registry, Processes: map[string]http.Handler{
			"proxy": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "proxy_answer 1") }),
		},
		Configz: func() map[string]any { return map[string]any{"kubeletconfig": map[string]any{"maxPods": 110}} },
	}
	for _, c := range change {
		c(&config, &deps)
	}
	f.server, err = server.New(deps, config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.server.Start(ctx) }()
	select {
	case <-f.server.Ready():
	case err := <-done:
		require.NoError(t, err)
	}
	f.base = "https://" + f.server.Addrs()[0].String()
	stopped := false
	f.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(f.stop)
	return f
}

// api returns a client of an API server that authenticates the token "good" as admin.
func (f *fixture) api(t *testing.T) kubernetes.Interface {
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
		f.mu.Lock()
		f.reviews = append(f.reviews, *attributes)
		f.mu.Unlock()
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

// as returns an HTTP client with that user's certificate, or without one for an empty user.
func (f *fixture) as(t *testing.T, user string) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(f.cert)
	config := &tls.Config{RootCAs: roots}
	if user != "" {
		cert, err := tls.LoadX509KeyPair(f.path(user+".crt"), f.path(user+".key"))
		require.NoError(t, err)
		config.Certificates = []tls.Certificate{cert}
	}
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

func (f *fixture) do(t *testing.T, user, method, path string, header ...string) (int, string) {
	t.Helper()
	return f.send(t, user, method, path, "", header...)
}

// send is do with a body.
func (f *fixture) send(t *testing.T, user, method, path, content string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.base+path, strings.NewReader(content))
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := f.as(t, user).Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}
