package identities_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/identities"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fixture is a cluster's identities, and a clock that moves when the test says so.
type fixture struct {
	config *config.Config
	clock  *testingclock.FakePassiveClock
	waits  chan time.Time // until when Run waits
	wake   chan struct{}
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{
		config: &config.Config{
			DataDir: t.TempDir(), APIPort: 6443, BindAddresses: []string{"127.0.0.1"}, ServiceCIDR: "10.96.0.0/16", NodeName: "node-1",
			CertificateLifetime: 365 * 24 * time.Hour,
		},
		clock: testingclock.NewFakePassiveClock(start), waits: make(chan time.Time), wake: make(chan struct{}),
	}
}

func (f *fixture) deps() identities.Deps {
	return identities.Deps{Clock: f.clock, Wait: func(ctx context.Context, until time.Time) error {
		select {
		case f.waits <- until:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-f.wake:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
}

// run runs the renewal until the test ends, and returns after it has begun to wait.
func (f *fixture) run(t *testing.T) (until time.Time) {
	t.Helper()
	i, err := identities.Ensure(f.deps(), f.config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return <-f.waits
}

// at sets the clock and lets Run check once; it returns until when that waits then.
func (f *fixture) at(now time.Time) (until time.Time) {
	f.clock.SetTime(now)
	f.wake <- struct{}{}
	return <-f.waits
}

// ends returns when the certificate of a component's kubeconfig ends.
func (f *fixture) ends(t *testing.T, part string) time.Time {
	t.Helper()
	path := f.config.Kubeconfig(part)
	if part == "" {
		path = f.config.AdminKubeconfig()
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	tlsConfig, err := rest.TLSConfigFor(c)
	require.NoError(t, err)
	cert, err := tlsConfig.GetClientCertificate(nil)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	require.NoError(t, err)
	return leaf.NotAfter
}

func TestCertificatesAreRenewedWhileRunning(t *testing.T) {
	f := newFixture(t)
	require.Equal(t, start.Add(12*time.Hour), f.run(t))
	first := start.AddDate(1, 0, 0)
	now := start.AddDate(0, 7, 0)
	require.Equal(t, now.Add(12*time.Hour), f.at(now))
	for _, part := range []string{"", "node", "controller-manager", "scheduler", "kube-proxy", "dns", identities.ControlPlane} {
		require.Equal(t, first, f.ends(t, part), part)
	}
	now = start.AddDate(0, 9, 0)
	f.at(now)
	for _, part := range []string{"", "node", "controller-manager", "scheduler", "kube-proxy", "dns", identities.ControlPlane} {
		require.Equal(t, now.AddDate(1, 0, 0), f.ends(t, part), part)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(f.config.PKIDir(), "apiserver.crt"), filepath.Join(f.config.PKIDir(), "apiserver.key"))
	require.NoError(t, err)
	require.Equal(t, now.AddDate(1, 0, 0), pair.Leaf.NotAfter)
}

// TestRenewalIsTriedAgain makes the directory of kubeconfigs unusable for a while.
func TestRenewalIsTriedAgain(t *testing.T) {
	f := newFixture(t)
	f.run(t)
	dir := f.config.KubeconfigDir()
	require.NoError(t, os.Rename(dir, dir+".away"))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	now := start.AddDate(0, 9, 0)
	require.Equal(t, now.Add(time.Minute), f.at(now))
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Rename(dir+".away", dir))
	now = now.Add(time.Minute)
	require.Equal(t, now.Add(12*time.Hour), f.at(now))
	require.Equal(t, now.AddDate(1, 0, 0), f.ends(t, "node"))
}

// TestClientsFollowARenewal lets one client of a component send requests before and after a renewal.
func TestClientsFollowARenewal(t *testing.T) {
	usual := transport.CertCallbackRefreshDuration
	transport.CertCallbackRefreshDuration = 10 * time.Millisecond
	t.Cleanup(func() { transport.CertCallbackRefreshDuration = usual })
	f := newFixture(t)
	f.clock.SetTime(time.Now())
	f.run(t)
	serving, err := tls.LoadX509KeyPair(filepath.Join(f.config.PKIDir(), "apiserver.crt"), filepath.Join(f.config.PKIDir(), "apiserver.key"))
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.TLS.PeerCertificates[0].NotAfter.Format(time.RFC3339)))
	}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	c, err := clientcmd.BuildConfigFromFlags("", f.config.Kubeconfig("dns"))
	require.NoError(t, err)
	c.Host = server.URL
	client, err := rest.HTTPClientFor(c)
	require.NoError(t, err)
	get := func() string {
		response, err := client.Get(c.Host)
		if err != nil {
			return "" // the connection was closed just now
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return string(body)
	}
	first := get()
	require.NotEmpty(t, first)
	require.Equal(t, first, get())
	f.at(time.Now().AddDate(0, 9, 0))
	require.Eventually(t, func() bool { return get() > first }, time.Minute, 10*time.Millisecond)
}
