package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDockerConfigKeepsTheUsersLogins makes the configuration of the command of `berth images serve -- COMMAND`.
func TestDockerConfigKeepsTheUsersLogins(t *testing.T) {
	const login = `"127.0.0.1:5000":{"auth":"YmVydGg6cHc="}`
	for name, tt := range map[string]struct{ before, after string }{
		"no file":     {"", `{"auths":{` + login + `},"credHelpers":{"127.0.0.1:5000":""}}`},
		"empty":       {"{}", `{"auths":{` + login + `},"credHelpers":{"127.0.0.1:5000":""}}`},
		"null values": {`{"auths":null}`, `{"auths":{` + login + `},"credHelpers":{"127.0.0.1:5000":""}}`},
		"logins": {
			`{"auths":{"reg.example":{"auth":"dTpw","x":1},"127.0.0.1:5000":{"auth":"old"}},"credsStore":"desktop","credHelpers":{"gcr.io":"gcloud"},"n":[1]}`,
			`{"auths":{"reg.example":{"auth":"dTpw","x":1},` + login + `},"credsStore":"desktop",
				"credHelpers":{"gcr.io":"gcloud","127.0.0.1:5000":""},"n":[1]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, dir := t.TempDir(), t.TempDir()
			if tt.before != "" {
				require.NoError(t, os.WriteFile(filepath.Join(from, "config.json"), []byte(tt.before), 0o600))
			}
			plugin := filepath.Join(from, "cli-plugins", "docker-buildx")
			require.NoError(t, os.MkdirAll(filepath.Dir(plugin), 0o700))
			require.NoError(t, os.WriteFile(plugin, []byte("program"), 0o700))
			require.NoError(t, writeDockerConfig(dir, from, "127.0.0.1:5000", "berth", "pw"))
			data, err := os.ReadFile(filepath.Join(dir, "config.json"))
			require.NoError(t, err)
			require.JSONEq(t, tt.after, string(data))
			data, err = os.ReadFile(filepath.Join(dir, "cli-plugins", "docker-buildx"))
			require.NoError(t, err)
			require.Equal(t, "program", string(data))
			require.NoError(t, os.RemoveAll(dir))
			require.FileExists(t, plugin, "the user's own stays")
		})
	}
	dir := t.TempDir()
	require.NoError(t, writeDockerConfig(dir, "", "127.0.0.1:5000", "berth", "pw"), "without a home")
	require.NoError(t, writeDockerConfig(dir, filepath.Join(dir, "absent"), "127.0.0.1:5000", "berth", "pw"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{"), 0o600))
	require.ErrorContains(t, writeDockerConfig(t.TempDir(), dir, "127.0.0.1:5000", "berth", "pw"), filepath.Join(dir, "config.json"))
}

func TestDockerConfigDir(t *testing.T) {
	t.Setenv("HOME", "/home/u")
	t.Setenv("DOCKER_CONFIG", "")
	require.Equal(t, "/home/u/.docker", dockerConfigDir())
	t.Setenv("DOCKER_CONFIG", "/etc/docker-logins")
	require.Equal(t, "/etc/docker-logins", dockerConfigDir())
}
