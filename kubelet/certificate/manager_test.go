package certificate_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/kubelet/certificate"
)

// testTimeout bounds waits that end by an event.
const testTimeout = time.Minute

// signer is a cluster that signs every request as soon as it sees it.
type signer struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate

	mu       sync.Mutex
	lifetime time.Duration // that certificates have left
	aged     bool          // the next certificate has lived so much of its life that it is to be renewed at once
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

// client is an API server that answers requests for certificates with the signer's.
func (s *signer) client() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		request := action.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		request.Name, request.UID = "csr-"+request.GenerateName+rand.Text(), "uid"
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved}}
		request.Status.Certificate = s.sign(request)
		// The fake lists whatever there is to who asks for one request by its name.
		if earlier := s.submitted(); len(earlier) > 1 {
			resource := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
			_ = client.Tracker().Delete(resource, "", earlier[len(earlier)-2].Name) // it may be another client's
		}
		return true, request, client.Tracker().Add(request)
	})
	return client
}

func (s *signer) sign(request *certificatesv1.CertificateSigningRequest) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, request)
	block, _ := pem.Decode(request.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	require.NoError(s.t, err)
	s.serial++
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(s.serial), Subject: asked.Subject, DNSNames: asked.DNSNames, IPAddresses: asked.IPAddresses,
		NotBefore: now.Add(-time.Second), NotAfter: now.Add(s.lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if s.aged {
		template.NotBefore, s.aged = now.Add(-20*s.lifetime), false
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.cert, asked.PublicKey, s.key)
	require.NoError(s.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (s *signer) submitted() []*certificatesv1.CertificateSigningRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// start runs a keeper until the test ends, and returns what stops it earlier.
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
	config := certificate.Config{NodeName: "n1", Dir: filepath.Join(t.TempDir(), "pki"), Lifetime: 2 * time.Hour}
	manager, err := certificate.NewServing(config, s.client(), []string{"host"}, []net.IP{net.IPv4(10, 0, 0, 1)})
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
	again, err := certificate.NewServing(config, s.client(), []string{"host"}, []net.IP{net.IPv4(10, 0, 0, 1)})
	require.NoError(t, err)
	require.Equal(t, cert.Leaf.SerialNumber, again.Current().Leaf.SerialNumber, "the next start finds it")
	require.Len(t, s.submitted(), 1)
}

// TestServingCertificateForOtherAddresses has the node move before its first certificate is there, and again later.
func TestServingCertificateForOtherAddresses(t *testing.T) {
	s := newSigner(t, time.Hour)
	config := certificate.Config{NodeName: "n1", Dir: filepath.Join(t.TempDir(), "pki")}
	manager, err := certificate.NewServing(config, s.client(), []string{"host"}, []net.IP{net.IPv4(10, 0, 0, 1)})
	require.NoError(t, err)
	require.NoError(t, manager.SetIPs([]net.IP{net.IPv4(10, 0, 0, 2)}))
	start(t, manager)
	first := wait(t, manager)
	require.Equal(t, "10.0.0.2", first.Leaf.IPAddresses[0].String())
	renewed := make(chan struct{}, 1)
	manager.OnRenewal(func() { renewed <- struct{}{} })
	path := manager.Path()
	require.NoError(t, manager.SetIPs([]net.IP{net.IPv4(10, 0, 0, 3)}))
	require.NotNil(t, manager.Current(), "the one of before is good until then")
	select {
	case <-renewed:
	case <-time.After(testTimeout):
		t.Fatal("no certificate for the other address")
	}
	require.Equal(t, "10.0.0.3", manager.Current().Leaf.IPAddresses[0].String())
	require.Equal(t, path, manager.Path())
	pair, err := tls.LoadX509KeyPair(path, path)
	require.NoError(t, err)
	require.Equal(t, manager.Current().Leaf.SerialNumber, pair.Leaf.SerialNumber)

	own, err := certificate.NewClient(config, func(*tls.Certificate) (kubernetes.Interface, error) { return s.client(), nil })
	require.NoError(t, err)
	require.ErrorContains(t, own.SetIPs(nil), "it is a client's")
}

// slowConn is a connection whose reader learns only when the test ends that it was closed, as a slow one may.
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

// TestRenewal has a client certificate renewed under an open connection: the next request comes with the new one.
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
	renew := make(chan struct{}) // a renewal waits for it
	manager, err := certificate.NewClient(certificate.Config{NodeName: "n1", Dir: t.TempDir()},
		func(current *tls.Certificate) (kubernetes.Interface, error) {
			withCert <- current != nil
			if current != nil {
				select {
				case <-renew:
				case <-t.Context().Done():
				}
			}
			return s.client(), nil
		})
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
	require.True(t, <-withCert, "renewal asks with the certificate that is to be renewed")
}

// TestFailedRenewalsAreCounted has an API server refuse a request for each kind of certificate, and then sign it.
func TestFailedRenewalsAreCounted(t *testing.T) {
	for name, keep := range map[string]func(config certificate.Config, client kubernetes.Interface) (*certificate.Manager, error){
		"kubelet_certificate_manager_client_expiration_renew_errors": func(config certificate.Config, client kubernetes.Interface) (
			*certificate.Manager, error,
		) {
			return certificate.NewClient(config, func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil })
		},
		"kubelet_server_expiration_renew_errors": func(config certificate.Config, client kubernetes.Interface) (
			*certificate.Manager, error,
		) {
			return certificate.NewServing(config, client, []string{"host"}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newSigner(t, time.Hour).client()
			var asked atomic.Int32
			client.PrependReactor("create", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
				return asked.Add(1) == 1, nil, errors.New("not yet")
			})
			manager, err := keep(certificate.Config{NodeName: "n1", Dir: t.TempDir()}, client)
			require.NoError(t, err)
			registry := prometheus.NewRegistry()
			registry.MustRegister(manager.Metrics())
			failed := func() float64 {
				families, err := registry.Gather()
				require.NoError(t, err)
				require.Len(t, families, 1)
				require.Equal(t, name, families[0].GetName())
				return families[0].Metric[0].GetCounter().GetValue()
			}
			require.Zero(t, failed(), "it is there before anything fails")
			start(t, manager)
			wait(t, manager)
			require.InDelta(t, 1, failed(), 0)
		})
	}
}

func TestKubeconfig(t *testing.T) {
	s := newSigner(t, time.Hour)
	dir := t.TempDir()
	manager, err := certificate.NewClient(certificate.Config{NodeName: "n1", Dir: dir},
		func(*tls.Certificate) (kubernetes.Interface, error) { return s.client(), nil })
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
	require.ErrorContains(t, certificate.WriteKubeconfig(path, &rest.Config{}, manager), "no address")
}

func TestRefusals(t *testing.T) {
	_, err := certificate.NewServing(certificate.Config{NodeName: "n1", Dir: t.TempDir()}, fake.NewClientset(), nil, nil)
	require.ErrorContains(t, err, "name or an address")
	_, err = certificate.NewClient(certificate.Config{Dir: t.TempDir()}, nil)
	require.ErrorContains(t, err, "NodeName")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubelet-client-current.pem"), []byte("torn"), 0o600))
	_, err = certificate.NewClient(certificate.Config{NodeName: "n1", Dir: dir}, nil)
	require.ErrorContains(t, err, dir, "it says where the damaged file is")
}
