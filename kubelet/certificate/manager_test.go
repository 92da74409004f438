package certificate_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/statefile/corrupt"
	"github.com/berth-dev/berth/kubelet/certificate"
)

// testTimeout bounds waits that end by an event.
const testTimeout = time.Minute

// signer signs every certificate signing request at once.
type signer struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate

	mu       sync.Mutex
	lifetime time.Duration // of new certificates
	aged     bool          // the next certificate is already due for renewal
	requests []*certificatesv1.CertificateSigningRequest
	serial   int64
}

func newSigner(t *testing.T, lifetime time.Duration) *signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &signer{t: t, key: key, cert: cert, lifetime: lifetime, serial: 1}
}

// client returns an API server whose certificate signing requests the signer signs.
func (s *signer) client() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		request := action.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		request.Name, request.UID = "csr-"+request.GenerateName+rand.Text(), "uid"
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved}}
		request.Status.Certificate = s.sign(request)
		// The fake ignores field selectors, so only the newest request may exist.
		if earlier := s.submitted(); len(earlier) > 1 {
			resource := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
			_ = client.Tracker().Delete(resource, "", earlier[len(earlier)-2].Name) // it may belong to another client
		}
		return true, request, client.Tracker().Add(request)
	})
	return client
}

func (s *signer) deps() certificate.Deps {
	return certificate.Deps{Clientset: certificate.FixedClient(s.client())}
}

func (s *signer) sign(request *certificatesv1.CertificateSigningRequest) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, request)
	block, _ := pem.Decode(request.Spec.Request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	require.NoError(s.t, err)
	s.serial++
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(s.serial), Subject: csr.Subject, DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses,
		NotBefore: now.Add(-time.Second), NotAfter: now.Add(s.lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if s.aged {
		template.NotBefore, s.aged = now.Add(-20*s.lifetime), false
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.cert, csr.PublicKey, s.key)
	require.NoError(s.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (s *signer) submitted() []*certificatesv1.CertificateSigningRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// start runs the manager until the test ends or stop is called.
func start(t *testing.T, manager *certificate.Manager) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { require.NoError(t, manager.Start(ctx)) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

func wait(t *testing.T, manager *certificate.Manager) *tls.Certificate {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cert, err := manager.Wait(ctx)
	require.NoError(t, err)
	return cert
}

func TestServingCertificate(t *testing.T) {
	s := newSigner(t, time.Hour)
	config := certificate.Config{NodeName: "n1", Dir: filepath.Join(t.TempDir(), "pki"), Lifetime: 2 * time.Hour,
		DNSNames: []string{"host"}, IPs: []net.IP{net.IPv4(10, 0, 0, 1)}}
	manager, err := certificate.NewServing(s.deps(), config)
	require.NoError(t, err)
	require.Nil(t, manager.Current())
	stop := start(t, manager)
	cert := wait(t, manager)
	require.Equal(t, "system:node:n1", cert.Leaf.Subject.CommonName)
	require.Equal(t, []string{"system:nodes"}, cert.Leaf.Subject.Organization)
	require.Equal(t, []string{"host"}, cert.Leaf.DNSNames)
	require.Len(t, cert.Leaf.IPAddresses, 1)
	request := s.submitted()[0]
	require.Equal(t, certificatesv1.KubeletServingSignerName, request.Spec.SignerName)
	require.Equal(t, int32(7200), *request.Spec.ExpirationSeconds)
	require.ElementsMatch(t, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		request.Spec.Usages)
	info, err := os.Stat(manager.Path())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	stop()
	again, err := certificate.NewServing(s.deps(), config)
	require.NoError(t, err)
	require.Equal(t, cert.Leaf.SerialNumber, again.Current().Leaf.SerialNumber, "the next start loads it from disk")
	require.Len(t, s.submitted(), 1)
}

// TestServingCertificateForOtherAddresses changes the addresses before the first certificate is issued, and again later.
func TestServingCertificateForOtherAddresses(t *testing.T) {
	s := newSigner(t, time.Hour)
	config := certificate.Config{NodeName: "n1", Dir: filepath.Join(t.TempDir(), "pki"),
		DNSNames: []string{"host"}, IPs: []net.IP{net.IPv4(10, 0, 0, 1)}}
	manager, err := certificate.NewServing(s.deps(), config)
	require.NoError(t, err)
	require.NoError(t, manager.SetNames(config.DNSNames, []net.IP{net.IPv4(10, 0, 0, 2)}))
	start(t, manager)
	first := wait(t, manager)
	require.Equal(t, "10.0.0.2", first.Leaf.IPAddresses[0].String())
	renewed := make(chan struct{}, 1)
	manager.OnRenewal(func() { renewed <- struct{}{} })
	path := manager.Path()
	require.NoError(t, manager.SetNames(config.DNSNames, []net.IP{net.IPv4(10, 0, 0, 3)}))
	require.NotNil(t, manager.Current(), "the previous one stays valid until then")
	select {
	case <-renewed:
	case <-time.After(testTimeout):
		t.Fatal("no certificate for the new address")
	}
	require.Equal(t, "10.0.0.3", manager.Current().Leaf.IPAddresses[0].String())
	require.Equal(t, path, manager.Path())
	pair, err := tls.LoadX509KeyPair(path, path)
	require.NoError(t, err)
	require.Equal(t, manager.Current().Leaf.SerialNumber, pair.Leaf.SerialNumber)

	own, err := certificate.NewClient(s.deps(), config)
	require.NoError(t, err)
	require.ErrorContains(t, own.SetNames(nil, nil), "a client certificate has none")
}

// TestServingCertificateAfterAddressesThatFailed sets addresses while the stored pair cannot be read: the certificate that
// was requested before is still accepted.
func TestServingCertificateAfterAddressesThatFailed(t *testing.T) {
	s := newSigner(t, time.Hour)
	dir := filepath.Join(t.TempDir(), "pki")
	manager, err := certificate.NewServing(s.deps(), certificate.Config{NodeName: "n1", Dir: dir,
		IPs: []net.IP{net.IPv4(10, 0, 0, 1)}})
	require.NoError(t, err)
	for _, name := range []string{"kubelet-server.crt", "kubelet-server.key"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("damaged"), 0o600))
	}
	require.Error(t, manager.SetNames(nil, []net.IP{net.IPv4(10, 0, 0, 2)}))

	start(t, manager)
	require.Equal(t, "10.0.0.1", wait(t, manager).Leaf.IPAddresses[0].String())
}

// slowConn is a connection whose reader notices only at the end of the test that it was closed.
type slowConn struct {
	net.Conn
	closed atomic.Bool
}

func (c *slowConn) Close() error { c.closed.Store(true); return nil }

func (c *slowConn) Write(data []byte) (int, error) {
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(data)
}

// TestRenewal renews a client certificate while a connection is open: the next request uses the new one.
func TestRenewal(t *testing.T) {
	s := newSigner(t, time.Hour)
	s.aged = true
	serials := make(chan *big.Int, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		serials <- r.TLS.PeerCertificates[0].SerialNumber
	}))
	pool := x509.NewCertPool()
	pool.AddCert(s.cert)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	bootstrap := &rest.Config{Host: server.URL, BearerToken: "once",
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := certificate.Dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = conn.Close() })
			return &slowConn{Conn: conn}, nil
		},
	}

	withCert := make(chan bool, 8)
	renew := make(chan struct{}) // renewal waits until it is closed
	manager, err := certificate.NewClient(certificate.Deps{
		Clientset: func(current *tls.Certificate) (kubernetes.Interface, error) {
			withCert <- current != nil
			if current != nil {
				select {
				case <-renew:
				case <-t.Context().Done():
				}
			}
			return s.client(), nil
		},
	}, certificate.Config{NodeName: "n1", Dir: t.TempDir()})
	require.NoError(t, err)
	renewed := make(chan struct{}, 8)
	config, err := certificate.RESTConfig(bootstrap, manager)
	require.NoError(t, err)
	require.Empty(t, config.BearerToken, "the bootstrap credential is not used any more")
	manager.OnRenewal(func() { renewed <- struct{}{} })
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	start(t, manager)
	get := func() *big.Int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err)
		require.Equal(t, 2, response.ProtoMajor)
		require.NoError(t, response.Body.Close())
		return <-serials
	}
	await := func() {
		select {
		case <-renewed:
		case <-time.After(testTimeout):
			t.Fatal("the certificate is not renewed")
		}
	}
	await()
	require.NotNil(t, wait(t, manager))
	first := get()
	require.Zero(t, get().Cmp(first), "until it is renewed")
	close(renew)
	await()
	require.Equal(t, 1, get().Cmp(first), "a new connection with the new certificate")
	require.False(t, <-withCert)
	require.True(t, <-withCert, "renewal authenticates with the current certificate")
}

// TestFailedRequestsAreCounted lets the first request for each kind of certificate fail and the next one succeed.
func TestFailedRequestsAreCounted(t *testing.T) {
	for name, create := range map[string]func(certificate.Deps, certificate.Config) (*certificate.Manager, error){
		"kubelet_certificate_manager_client_expiration_renew_errors": certificate.NewClient,
		"kubelet_server_expiration_renew_errors":                     certificate.NewServing,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newSigner(t, time.Hour).client()
			var requests atomic.Int32
			client.PrependReactor("create", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
				return requests.Add(1) == 1, nil, errors.New("not yet")
			})
			manager, err := create(certificate.Deps{Clientset: certificate.FixedClient(client)},
				certificate.Config{NodeName: "n1", Dir: t.TempDir(), DNSNames: []string{"host"}})
			require.NoError(t, err)
			registry := prometheus.NewRegistry()
			registry.MustRegister(manager.Metrics())
			failed := func() float64 {
				return value(t, registry, name).GetCounter().GetValue()
			}
			require.Zero(t, failed(), "the counter exists before the first failure")
			start(t, manager)
			wait(t, manager)
			require.InDelta(t, 1, failed(), 0)
		})
	}
}

// value returns the one metric of the name.
func value(t *testing.T, registry *prometheus.Registry, name string) *dto.Metric {
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.Metric[0]
		}
	}
	require.Fail(t, "no such metric", name)
	return nil
}

// TestTimeToExpiryIsMeasured reads for how long certificates are valid, before and after there is one.
func TestTimeToExpiryIsMeasured(t *testing.T) {
	for name, create := range map[string]func(certificate.Deps, certificate.Config) (*certificate.Manager, error){
		"kubelet_certificate_manager_client_ttl_seconds": certificate.NewClient,
		"kubelet_certificate_manager_server_ttl_seconds": certificate.NewServing,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manager, err := create(newSigner(t, time.Hour).deps(), certificate.Config{NodeName: "n1", Dir: t.TempDir(), DNSNames: []string{"host"}})
			require.NoError(t, err)
			registry := prometheus.NewRegistry()
			registry.MustRegister(manager.Metrics())
			require.True(t, math.IsInf(value(t, registry, name).GetGauge().GetValue(), 1))
			start(t, manager)
			wait(t, manager)
			left := value(t, registry, name).GetGauge().GetValue()
			require.Greater(t, left, 1.0)
			require.LessOrEqual(t, left, time.Hour.Seconds())
		})
	}
}

// TestAgeOfReplacedCertificatesIsMeasured lets a serving certificate be replaced.
func TestAgeOfReplacedCertificatesIsMeasured(t *testing.T) {
	manager, err := certificate.NewServing(newSigner(t, 3*time.Second).deps(), certificate.Config{NodeName: "n1", Dir: t.TempDir(), DNSNames: []string{"host"}})
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(manager.Metrics())
	start(t, manager)
	require.Eventually(t, func() bool {
		return value(t, registry, "kubelet_certificate_manager_server_rotation_seconds").GetHistogram().GetSampleCount() > 0
	}, time.Minute, 10*time.Millisecond)
}

func TestKubeconfig(t *testing.T) {
	s := newSigner(t, time.Hour)
	dir := t.TempDir()
	manager, err := certificate.NewClient(s.deps(), certificate.Config{NodeName: "n1", Dir: dir})
	require.NoError(t, err)
	start(t, manager)
	wait(t, manager)
	path := filepath.Join(dir, "kubelet.conf")
	require.NoError(t, certificate.WriteKubeconfig(path, &rest.Config{Host: "https://127.0.0.1:1",
		BearerToken: "once", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca")}}, manager))
	read, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	require.Equal(t, "https://127.0.0.1:1", read.Host)
	require.Equal(t, manager.Path(), read.CertFile)
	require.Empty(t, read.BearerToken)
	require.ErrorContains(t, certificate.WriteKubeconfig(path, &rest.Config{}, manager), "address is empty")
}

func TestInvalidArguments(t *testing.T) {
	deps := certificate.Deps{Clientset: certificate.FixedClient(fake.NewClientset())}
	_, err := certificate.NewServing(deps, certificate.Config{NodeName: "n1", Dir: t.TempDir()})
	require.ErrorContains(t, err, "Config.DNSNames or Config.IPs")
	_, err = certificate.NewClient(deps, certificate.Config{Dir: t.TempDir()})
	require.ErrorContains(t, err, "Config.NodeName")
	_, err = certificate.NewClient(certificate.Deps{}, certificate.Config{NodeName: "n1", Dir: t.TempDir()})
	require.ErrorContains(t, err, "Deps.Clientset")
}

// TestDamagedCertificateIsRequestedAgain damages the stored pair in each way: the next start keeps it and gets a new one.
func TestDamagedCertificateIsRequestedAgain(t *testing.T) {
	for _, way := range corrupt.Ways() {
		t.Run(way.Name, func(t *testing.T) {
			s, config := newSigner(t, time.Hour), certificate.Config{NodeName: "n1", Dir: t.TempDir()}
			first, err := certificate.NewClient(s.deps(), config)
			require.NoError(t, err)
			start(t, first)
			wait(t, first)
			path := first.Path()
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.Remove(path)) // a link to the newest file
			require.NoError(t, os.WriteFile(path, data, 0o600))
			require.NoError(t, way.Do(path))

			var log bytes.Buffer
			deps := s.deps()
			deps.Logger = slog.New(slog.NewTextHandler(&log, nil))
			second, err := certificate.NewClient(deps, config)
			require.NoError(t, err)
			start(t, second)
			require.NotNil(t, wait(t, second))
			if kept, err := filepath.Glob(path + ".damaged"); err == nil && len(kept) > 0 {
				require.Equal(t, 1, strings.Count(log.String(), "set aside a damaged state file"))
				require.Contains(t, log.String(), "remedy")
			}
		})
	}
}
