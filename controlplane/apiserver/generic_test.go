package apiserver

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubeapis "k8s.io/kubernetes/pkg/controlplane"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/controlplane/admission"
	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/audit"
	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/encryption"
	"github.com/berth-dev/berth/controlplane/pki"
)

// completedOptions are those of a server in a directory of its own.
func completedOptions(t *testing.T) options.CompletedOptions {
	t.Helper()
	dir := t.TempDir()
	c := &config.Config{DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), BindAddresses: []string{"127.0.0.1"},
		ServiceCIDR: "10.96.0.0/16", PodCIDR: "10.88.0.0/16", NodeName: "n"}
	for _, path := range []string{c.DataDir, c.RunDir} {
		require.NoError(t, os.MkdirAll(path, 0o700))
	}
	_, err := pki.Ensure(c.PKIDir(), pki.Spec{Addresses: c.BindAddresses, NodeName: c.NodeName}, time.Now())
	require.NoError(t, err)
	require.NoError(t, encryption.Prepare(c, false))
	require.NoError(t, atomicfile.Write(c.AuthenticationConfigFile(), []byte(authentication)))
	require.NoError(t, admission.Prepare(c))
	require.NoError(t, audit.Prepare(c))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	c.APIPort = listener.Addr().(*net.TCPAddr).Port
	completed, err := New(Deps{Listener: listener}, c).options(t.Context())
	require.NoError(t, err)
	return completed
}

// TestGenericConfigurationIsUpstreams fails when upstream's configuration has something that ours lacks, after an update for instance.
func TestGenericConfigurationIsUpstreams(t *testing.T) {
	ours, err := newGeneric(completedOptions(t))
	require.NoError(t, err)
	theirs, informers, storage, err := controlplane.BuildGenericConfig(completedOptions(t).CompletedOptions,
		[]*runtime.Scheme{legacyscheme.Scheme, apiextensions.Scheme, aggregatorscheme.Scheme},
		kubeapis.DefaultAPIResourceConfigSource(), generated.GetOpenAPIDefinitions)
	require.NoError(t, err)
	require.NotNil(t, informers)
	require.Equal(t, reflect.ValueOf(storage).IsNil(), ours.storage == nil)
	have, want := reflect.ValueOf(ours.config).Elem(), reflect.ValueOf(theirs).Elem()
	for i := range want.NumField() {
		field := want.Type().Field(i)
		if field.IsExported() {
			require.Equal(t, filled(want.Field(i)), filled(have.Field(i)), field.Name)
		}
	}
	for _, part := range []string{"Authentication", "Authorization", "LoopbackClientConfig", "SecureServing"} {
		a, b := reflect.Indirect(have.FieldByName(part)), reflect.Indirect(want.FieldByName(part))
		for i := range b.NumField() {
			if b.Type().Field(i).IsExported() {
				require.Equal(t, filled(b.Field(i)), filled(a.Field(i)), "%s.%s", part, b.Type().Field(i).Name)
			}
		}
	}
	require.Equal(t, theirs.LoopbackClientConfig.ServerName, ours.config.LoopbackClientConfig.ServerName)
	require.Equal(t, theirs.LoopbackClientConfig.ContentType, ours.config.LoopbackClientConfig.ContentType)
	require.Equal(t, checks(theirs), checks(ours.config))
}

// filled describes a field: its number of elements, or whether it is empty.
func filled(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len()
	case reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Float32:
		return v.Interface()
	default:
		return v.IsZero()
	}
}

// checks are the names of the checks of the server's health.
func checks(c *genericapiserver.Config) (names []string) {
	for _, check := range slices.Concat(c.HealthzChecks, c.LivezChecks) {
		names = append(names, check.Name())
	}
	return names
}

// TestTheServerReachesItselfByAKeyOfEllipticCurves connects by the certificate, and lets it end.
func TestTheServerReachesItselfByAKeyOfEllipticCurves(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serving := &genericapiserver.SecureServingInfo{Listener: listener}
	c := &genericapiserver.Config{SecureServing: serving}
	clock := clocktesting.NewFakePassiveClock(time.Now())
	require.NoError(t, applyLoopback(c, clock))
	require.Len(t, serving.SNICerts, 1)
	certificate, key := serving.SNICerts[0].CurrentCertKeyContent()
	pair, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	require.IsType(t, &ecdsa.PrivateKey{}, pair.PrivateKey)

	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	require.NoError(t, server.Listener.Close())
	server.Listener, server.TLS = listener, &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(c.LoopbackClientConfig.CAData))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: c.LoopbackClientConfig.ServerName,
	}}}
	response, err := client.Get("https://" + listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.GreaterOrEqual(t, len(c.LoopbackClientConfig.BearerToken), 26)

	require.Equal(t, []string{LoopbackCheck, LoopbackCheck}, checks(c))
	require.NoError(t, c.LivezChecks[0].Check(nil))
	clock.SetTime(clock.Now().Add(loopbackLife + time.Second))
	require.ErrorContains(t, c.LivezChecks[0].Check(nil), "expired")
}
