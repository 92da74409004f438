package kubeconfig_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/controlplane/kubeconfig"
	"github.com/berth-dev/berth/controlplane/pki"
)

const server = "https://127.0.0.1:6443"

var (
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	node  = pki.Identity{CommonName: "system:node:node-1", Organizations: []string{"system:nodes"}}
)

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.Ensure(filepath.Join(t.TempDir(), "pki"), pki.Spec{NodeName: "node-1"}, start)
	require.NoError(t, err)
	return a.Cluster()
}

func TestFileReachesTheServerAsTheIdentity(t *testing.T) {
	a := authority(t)
	path := filepath.Join(t.TempDir(), "node.kubeconfig")
	require.NoError(t, kubeconfig.Ensure(path, server, a, node, start))

	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	require.Equal(t, server, config.Host)
	require.Equal(t, a.CertPEM(), config.CAData)
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	require.NoError(t, err)
	require.Equal(t, "system:node:node-1", cert.Subject.CommonName)
	require.Equal(t, []string{"system:nodes"}, cert.Subject.Organization)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestEnsureReplacesOnlyWhatDoesNotFit(t *testing.T) {
	a := authority(t)
	tests := []struct {
		name      string
		damage    string
		server    string
		authority *pki.Authority
		id        pki.Identity
		now       time.Time
		same      bool
	}{
		{name: "fits", server: server, authority: a, id: node, now: start, same: true},
		{name: "another port", server: "https://127.0.0.1:7443", authority: a, id: node, now: start},
		{name: "another authority", server: server, authority: authority(t), id: node, now: start},
		{name: "another node", server: server, authority: a, now: start,
			id: pki.Identity{CommonName: "system:node:node-2", Organizations: []string{"system:nodes"}}},
		{name: "lost groups", server: server, authority: a, now: start,
			id: pki.Identity{CommonName: "system:node:node-1"}},
		{name: "near its end", server: server, authority: a, id: node, now: start.AddDate(1, 6, 0)},
		{name: "damaged", damage: "{", server: server, authority: a, id: node, now: start},
		{name: "empty", damage: " ", server: server, authority: a, id: node, now: start},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "node.kubeconfig")
			require.NoError(t, kubeconfig.Ensure(path, server, a, node, start))
			if tt.damage != "" {
				require.NoError(t, os.WriteFile(path, []byte(tt.damage), 0o600))
			}
			before, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, kubeconfig.Ensure(path, tt.server, tt.authority, tt.id, tt.now))
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, tt.same, string(before) == string(after))
			config, err := clientcmd.BuildConfigFromFlags("", path)
			require.NoError(t, err)
			require.Equal(t, tt.server, config.Host)
		})
	}
}

func TestPrepareMakesPrivateDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kubeconfigs")
	require.NoError(t, kubeconfig.Prepare(dir))
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

// TestComponentLoadsTheRenewedCertificate proves that kubeconfig and pair fit at each moment, and that a renewal changes the pair alone.
func TestComponentLoadsTheRenewedCertificate(t *testing.T) {
	a := authority(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "node.kubeconfig")
	require.NoError(t, kubeconfig.EnsureComponent(path, server, a, node, start))
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "node.pem"), config.CertFile)
	require.Equal(t, a.CertPEM(), config.CAData)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	serial := func() string {
		pair, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
		require.NoError(t, err)
		require.Equal(t, "system:node:node-1", pair.Leaf.Subject.CommonName)
		return pair.Leaf.SerialNumber.String()
	}
	first := serial()
	require.NoError(t, kubeconfig.EnsureComponent(path, server, a, node, start.AddDate(0, 1, 0)))
	require.Equal(t, first, serial())
	require.NoError(t, kubeconfig.EnsureComponent(path, server, a, node, start.AddDate(0, 9, 0)))
	require.NotEqual(t, first, serial())
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	info, err := os.Stat(config.CertFile)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	// A kubeconfig of an older version had the pair in it.
	require.NoError(t, kubeconfig.Ensure(path, server, a, node, start))
	require.NoError(t, kubeconfig.EnsureComponent(path, server, a, node, start))
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(before), string(again))
}
