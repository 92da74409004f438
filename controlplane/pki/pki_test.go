package pki_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/controlplane/pki"
)

var (
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	spec  = pki.Spec{
		Addresses: []string{"10.88.0.1", "10.96.0.1", "127.0.0.1", "10.88.0.1", ""},
		NodeName:  "node-1", NodeIP: "10.88.0.1",
	}
)

// snapshot is every file's content by name.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	files := make(map[string]string, len(entries))
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".damaged") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		require.NoError(t, err)
		files[entry.Name()] = string(data)
	}
	return files
}

// changed are the names of the files that differ.
func changed(before, after map[string]string) []string {
	names := []string{}
	for name, content := range after {
		if before[name] != content {
			names = append(names, name)
		}
	}
	return names
}

func certificate(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	if filepath.Ext(name) == "" {
		name += ".crt"
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	block, rest := pem.Decode(data)
	if block != nil && block.Type != "CERTIFICATE" {
		block, _ = pem.Decode(rest)
	}
	require.NotNil(t, block)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}

func ensured(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	_, err := pki.Ensure(dir, spec, start)
	require.NoError(t, err)
	return dir
}

func TestFirstEnsureMakesEverythingPrivate(t *testing.T) {
	dir := ensured(t)
	want := []string{
		"apiserver-kubelet-client.pem", "apiserver.crt", "apiserver.key",
		"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "front-proxy-client.crt",
		"front-proxy-client.key", "kubelet-server.crt", "kubelet-server.key", "sa.key", "sa.pub",
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var have []string
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), entry.Name())
		have = append(have, entry.Name())
	}
	require.Equal(t, want, have)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestCertificatesVerifyForWhatTheyAreFor(t *testing.T) {
	dir := ensured(t)
	ca, frontProxy := x509.NewCertPool(), x509.NewCertPool()
	ca.AddCert(certificate(t, dir, pki.CA))
	frontProxy.AddCert(certificate(t, dir, pki.FrontProxyCA))
	tests := []struct {
		name  string
		roots *x509.CertPool
		usage x509.ExtKeyUsage
		hosts []string
	}{
		{pki.APIServer, ca, x509.ExtKeyUsageServerAuth, []string{
			"10.88.0.1", "10.96.0.1", "127.0.0.1", "localhost", "node-1", "kubernetes", "kubernetes.default",
			"kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		}},
		{pki.KubeletServer, ca, x509.ExtKeyUsageServerAuth, []string{"node-1", "10.88.0.1", "127.0.0.1"}},
		{pki.APIServerKubeletClient, ca, x509.ExtKeyUsageClientAuth, []string{""}},
		{pki.FrontProxyClient, frontProxy, x509.ExtKeyUsageClientAuth, []string{""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cert := certificate(t, dir, tt.name)
			for _, host := range tt.hosts {
				_, err := cert.Verify(x509.VerifyOptions{
					Roots: tt.roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{tt.usage}, CurrentTime: start,
				})
				require.NoError(t, err, host)
			}
		})
	}
	_, err := certificate(t, dir, pki.FrontProxyClient).Verify(x509.VerifyOptions{
		Roots: ca, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: start,
	})
	require.Error(t, err, "a front-proxy certificate must not be a client of the cluster")
}

func TestSecondEnsureChangesOnlyWhatItMust(t *testing.T) {
	moved := spec
	moved.NodeIP = "10.88.0.9"
	reordered := spec
	reordered.Addresses = []string{"127.0.0.1", "10.96.0.1", "10.88.0.1"}
	tests := []struct {
		name   string
		spec   pki.Spec
		now    time.Time
		damage func(t *testing.T, dir string)
		want   []string
	}{
		{"nothing", spec, start, nil, nil},
		{"the same addresses in another order", reordered, start, nil, nil},
		{"seven months later", spec, start.AddDate(0, 7, 0), nil, nil},
		{"nine months later", spec, start.AddDate(0, 9, 0), nil, []string{
			"apiserver.crt", "apiserver.key", "kubelet-server.crt", "kubelet-server.key",
			"apiserver-kubelet-client.pem",
			"front-proxy-client.crt", "front-proxy-client.key",
		}},
		{"another node address", moved, start, nil, []string{"kubelet-server.crt", "kubelet-server.key"}},
		{"lost certificate", spec, start, remove("apiserver.crt"), []string{"apiserver.crt", "apiserver.key"}},
		{"lost key", spec, start, remove("apiserver.key"), []string{"apiserver.crt", "apiserver.key"}},
		{"lost pair", spec, start, remove("apiserver-kubelet-client.pem"), []string{"apiserver-kubelet-client.pem"}},
		{"pair of an earlier version", spec, start, func(t *testing.T, dir string) {
			overwrite("apiserver-kubelet-client.crt", "x")(t, dir)
			overwrite("apiserver-kubelet-client.key", "x")(t, dir)
		}, nil},
		{"cut certificate", spec, start, overwrite("apiserver.crt", "-----BEGIN CERT"),
			[]string{"apiserver.crt", "apiserver.key"}},
		{"empty key", spec, start, overwrite("apiserver.key", ""), []string{"apiserver.crt", "apiserver.key"}},
		{"lost public key", spec, start, remove("sa.pub"), []string{}},
		{"crash between key and certificate of the authority", spec, start, remove("ca.crt"), []string{
			"ca.crt",                         // the same key: everything it signed still verifies
			"apiserver.crt", "apiserver.key", // it has the authority's certificate in its chain
		}},
		{"a certificate of an earlier version, without the authority's", spec, start, func(t *testing.T, dir string) {
			path := filepath.Join(dir, "apiserver.crt")
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
			require.NoError(t, err)
			require.True(t, bytes.HasSuffix(data, ca), "machines that join find the authority in it")
			require.NoError(t, os.WriteFile(path, bytes.TrimSuffix(data, ca), 0o600))
		}, []string{"apiserver.crt", "apiserver.key"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := ensured(t)
			before := snapshot(t, dir)
			if tt.damage != nil {
				tt.damage(t, dir)
			}
			_, err := pki.Ensure(dir, tt.spec, tt.now)
			require.NoError(t, err)
			after := snapshot(t, dir)
			require.ElementsMatch(t, tt.want, changed(before, after))
			require.Len(t, after, len(before))

			_, err = pki.Ensure(dir, tt.spec, tt.now)
			require.NoError(t, err)
			require.Empty(t, changed(after, snapshot(t, dir)), "the repair must hold")
		})
	}
}

func TestSwappedKeysAreNoticed(t *testing.T) {
	dir := ensured(t)
	key, err := os.ReadFile(filepath.Join(dir, "kubelet-server.key"))
	require.NoError(t, err)
	overwrite("apiserver.key", string(key))(t, dir)
	before := snapshot(t, dir)
	_, err = pki.Ensure(dir, spec, start)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"apiserver.crt", "apiserver.key"}, changed(before, snapshot(t, dir)))
}

// TestDamageIsRepairedAndKept damages each file in every way.
func TestDamageIsRepairedAndKept(t *testing.T) {
	ways := map[string]func(t *testing.T, path string){
		"missing": func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
		"empty":   func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) },
		"half": func(t *testing.T, path string) {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(path, info.Size()/2))
		},
		"one bit": func(t *testing.T, path string) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			data[len(data)/2] ^= 1
			require.NoError(t, os.WriteFile(path, data, 0o600))
		},
		"foreign": func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte("nonsense"), 0o600)) },
		"huge":    func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 1<<40)) },
		"directory": func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.MkdirAll(filepath.Join(path, "child"), 0o700))
		},
		"link": func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink("/nonexistent/file", path))
		},
		"no permission": func(t *testing.T, path string) { require.NoError(t, os.Chmod(path, 0)) },
	}
	files, err := os.ReadDir(ensured(t))
	require.NoError(t, err)
	for _, file := range files {
		for way, damage := range ways {
			t.Run(file.Name()+"/"+way, func(t *testing.T) {
				dir := ensured(t)
				path := filepath.Join(dir, file.Name())
				public, err := os.ReadFile(filepath.Join(dir, "sa.pub"))
				require.NoError(t, err)
				old, err := os.ReadFile(path)
				require.NoError(t, err)
				damage(t, path)
				_, err = pki.Ensure(dir, spec, start)
				require.NoError(t, err)
				_, err = pki.Ensure(dir, spec, start)
				require.NoError(t, err)
				now, err := os.ReadFile(path)
				require.NoError(t, err)
				pub, err := os.ReadFile(filepath.Join(dir, "sa.pub"))
				require.NoError(t, err)
				if former, err := os.ReadFile(filepath.Join(dir, "sa-former.pub")); err == nil && file.Name() == "sa.key" {
					pub = former
				}
				if file.Name() != "sa.pub" {
					require.Equal(t, string(public), string(pub), "tokens in use stay valid")
				}
				if way != "missing" && string(now) != string(old) && way != "one bit" {
					_, err := os.Lstat(path + ".damaged")
					require.NoError(t, err, "what was found is kept")
				}
			})
		}
	}
}

// TestAuthorityIsMadeAgainFromItsKey proves that what the authority has signed stays valid when its certificate is lost or ended.
func TestAuthorityIsMadeAgainFromItsKey(t *testing.T) {
	for name, damage := range map[string]func(*testing.T, string){
		"damaged": overwrite("ca.crt", "nonsense"), "lost": remove("ca.crt"), "ended": func(*testing.T, string) {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := ensured(t)
			leaf := certificate(t, dir, pki.KubeletServer)
			damage(t, dir)
			now := start
			if name == "ended" {
				now = start.AddDate(11, 0, 0)
			}
			_, err := pki.Ensure(dir, spec, now)
			require.NoError(t, err)
			require.NoError(t, leaf.CheckSignatureFrom(certificate(t, dir, pki.CA)))
		})
	}
}

func TestHalfWrittenFilesAreRemoved(t *testing.T) {
	dir := ensured(t)
	overwrite("ca.key.berth-tmp-1234", "half")(t, dir)
	_, err := pki.Ensure(dir, spec, start)
	require.NoError(t, err)
	require.NotContains(t, snapshot(t, dir), "ca.key.berth-tmp-1234")
}

// TestAuthorityIsRenewedWithItsKey proves that neither what an authority has signed nor who has its former certificate notices a renewal.
func TestAuthorityIsRenewedWithItsKey(t *testing.T) {
	dir := ensured(t)
	former, leaf := certificate(t, dir, pki.CA), certificate(t, dir, pki.KubeletServer)
	key := snapshot(t, dir)["ca.key"]
	p, err := pki.Ensure(dir, spec, start.AddDate(7, 0, 0))
	require.NoError(t, err)
	require.Equal(t, former.NotAfter, certificate(t, dir, pki.CA).NotAfter, "too early")
	late := start.AddDate(8, 6, 0)
	require.NoError(t, p.Renew(late))
	renewed := certificate(t, dir, pki.CA)
	require.Equal(t, late.AddDate(0, 0, 3650), renewed.NotAfter)
	require.Equal(t, key, snapshot(t, dir)["ca.key"])
	require.NoError(t, leaf.CheckSignatureFrom(renewed))
	require.NoError(t, certificate(t, dir, pki.APIServer).CheckSignatureFrom(former))
	require.Equal(t, renewed.Raw, p.Cluster().Certificate())

	before := snapshot(t, dir)
	require.NoError(t, p.Renew(late.AddDate(0, 1, 0)))
	require.Empty(t, changed(before, snapshot(t, dir)))

	// The clock was wrong, and is set to the right time.
	require.NoError(t, p.Renew(start))
	require.False(t, start.Before(certificate(t, dir, pki.CA).NotBefore))
	require.False(t, start.Before(certificate(t, dir, pki.APIServer).NotBefore))
}

// TestRenewKeepsAuthorities proves that a cluster that runs does not change its authority when its files are lost.
func TestRenewKeepsAuthorities(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	p, err := pki.Ensure(dir, spec, start)
	require.NoError(t, err)
	ca := certificate(t, dir, pki.CA)
	overwrite("ca.key", "nonsense")(t, dir)
	remove("ca.crt")(t, dir)
	require.NoError(t, p.Renew(start.AddDate(0, 9, 0)))
	require.NoError(t, certificate(t, dir, pki.APIServer).CheckSignatureFrom(ca))
}

// TestShortLife renews certificates of a minute when 20 s are left.
func TestShortLife(t *testing.T) {
	dir, short := filepath.Join(t.TempDir(), "pki"), spec
	short.Life = time.Minute
	p, err := pki.Ensure(dir, short, start)
	require.NoError(t, err)
	require.Equal(t, start.Add(time.Minute), certificate(t, dir, pki.APIServer).NotAfter)
	before := snapshot(t, dir)
	require.NoError(t, p.Renew(start.Add(39*time.Second)))
	require.Empty(t, changed(before, snapshot(t, dir)))
	require.NoError(t, p.Renew(start.Add(41*time.Second)))
	require.Len(t, changed(before, snapshot(t, dir)), 7)
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
}

func overwrite(name, content string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
}

// TestNoDescriptorsDamageNothing renews while the process has no descriptors left: that says nothing about the files.
func TestNoDescriptorsDamageNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	p, err := pki.Ensure(dir, spec, start)
	require.NoError(t, err)
	before := snapshot(t, dir)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	next, err := os.Open(dir)
	require.NoError(t, err)
	none := limit
	none.Cur = uint64(next.Fd())
	require.NoError(t, next.Close())
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	err = p.Renew(start)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, unix.EMFILE)
	require.Equal(t, before, snapshot(t, dir))
	asides, err := filepath.Glob(filepath.Join(dir, "*.damaged*"))
	require.NoError(t, err)
	require.Empty(t, asides)
	require.NoError(t, p.Renew(start))
}
