package encryption_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	encryptionconfig "k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/encryption"
)

func newConfig(t *testing.T) *config.Config {
	t.Helper()
	dir := t.TempDir()
	return &config.Config{DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run")}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

func TestTheAPIServerReadsTheConfiguration(t *testing.T) {
	c := newConfig(t)
	require.NoError(t, encryption.Prepare(c, false))
	loaded, err := encryptionconfig.LoadEncryptionConfig(t.Context(), c.EncryptionConfigFile(), false, "test")
	require.NoError(t, err)
	require.Len(t, loaded.Transformers, 1)
	for resource := range loaded.Transformers {
		require.Equal(t, "secrets", resource.Resource)
	}
	for _, path := range append(c.SecretsKeyFiles(), c.EncryptionConfigFile()) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.EqualValues(t, 0o600, info.Mode().Perm(), path)
	}
	require.False(t, encryption.IsRewriteDue(c), "a new cluster has no Secrets in plain")
}

func TestKeyStaysTheSame(t *testing.T) {
	c := newConfig(t)
	require.NoError(t, encryption.Prepare(c, false))
	key := read(t, c.SecretsKeyFiles()[0])
	require.NoError(t, os.MkdirAll(filepath.Join(c.EtcdDataDir(), "member"), 0o700))
	damage := map[string]func(path string) error{
		"missing":     os.Remove,
		"empty":       func(path string) error { return os.Truncate(path, 0) },
		"half":        func(path string) error { return os.Truncate(path, int64(len(key)/2)) },
		"one bit":     func(path string) error { return os.WriteFile(path, []byte(flipped(key)), 0o600) },
		"foreign":     func(path string) error { return os.WriteFile(path, []byte("hello\n"), 0o600) },
		"a directory": func(path string) error { _ = os.Remove(path); return os.Mkdir(path, 0o700) },
	}
	for name, damage := range damage {
		for _, path := range c.SecretsKeyFiles() {
			require.NoError(t, damage(path), name)
			require.NoError(t, encryption.Prepare(c, true), "%s: %s", name, path)
			for _, copied := range c.SecretsKeyFiles() {
				require.Equal(t, key, read(t, copied), "%s: %s", name, path)
			}
		}
	}
}

// flipped changes one bit of the key itself.
func flipped(key string) string {
	raw := []byte(key)
	i := strings.IndexByte(key, ' ') + 5
	raw[i] ^= 1
	return string(raw)
}

func TestLostKeyIsNotReplaced(t *testing.T) {
	c := newConfig(t)
	require.NoError(t, encryption.Prepare(c, false))
	require.NoError(t, os.MkdirAll(filepath.Join(c.EtcdDataDir(), "member"), 0o700))
	for _, path := range c.SecretsKeyFiles() {
		require.NoError(t, os.Remove(path))
	}
	err := encryption.Prepare(c, true)
	require.ErrorIs(t, err, encryption.ErrKeyLost)
	require.ErrorContains(t, err, c.SecretsKeyFiles()[0])
	require.NoFileExists(t, c.SecretsKeyFiles()[0])
}

func TestSecretsOfAnOlderVersionAreRewritten(t *testing.T) {
	c := newConfig(t)
	require.NoError(t, os.MkdirAll(filepath.Join(c.EtcdDataDir(), "member"), 0o700))
	require.NoError(t, encryption.Prepare(c, false))
	require.True(t, encryption.IsRewriteDue(c))
	require.NoError(t, encryption.Prepare(c, true), "the next start, after one that was interrupted")
	require.True(t, encryption.IsRewriteDue(c))

	client := fake.NewClientset(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "two"}})
	require.NoError(t, encryption.Rewrite(t.Context(), client, c))
	updates := 0
	for _, action := range client.Actions() {
		if action.GetVerb() == "update" {
			updates++
		}
	}
	require.Equal(t, 2, updates)
	require.False(t, encryption.IsRewriteDue(c))
}
