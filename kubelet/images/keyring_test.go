package images_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

type secrets map[string]string

func (s secrets) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	content, ok := s[name]
	if !ok {
		return nil, errors.New("not found")
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(content)},
	}, nil
}

// typedSecrets are Secrets of any type.
type typedSecrets map[string]*corev1.Secret

func (s typedSecrets) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	return s[name], nil
}

// TestTypesOfPullSecrets uses the Secrets that are made for pulls, each with the key of its type, and says why it does not use another.
func TestTypesOfPullSecrets(t *testing.T) {
	const modern, old = `{"auths":{"reg.example":{"username":"modern"}}}`, `{"reg.example":{"username":"old"}}`
	both := map[string][]byte{corev1.DockerConfigJsonKey: []byte(modern), corev1.DockerConfigKey: []byte(old)}
	for kind, c := range map[corev1.SecretType]struct{ user, failure string }{
		corev1.SecretTypeDockerConfigJson: {"modern", ""},
		corev1.SecretTypeDockercfg:        {"old", ""},
		corev1.SecretTypeOpaque:           {"", `read imagePullSecret "a": its type is "Opaque": want "kubernetes.io/dockerconfigjson"`},
		"":                                {"", `its type is ""`},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}}}}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Type: kind, Data: both}
		credentials, err := images.NewPullSecrets(typedSecrets{"a": secret}).Credentials(t.Context(), pod, "reg.example/app")
		if c.failure != "" {
			require.ErrorContains(t, err, c.failure)
			require.Empty(t, credentials)
			continue
		}
		require.NoError(t, err)
		require.Len(t, credentials, 1)
		require.Equal(t, c.user, credentials[0].Auth.Username)
	}
}

// TestFormsOfLogins has logins as programs write them.
func TestFormsOfLogins(t *testing.T) {
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	for name, c := range map[string]struct {
		login string
		want  *runtimeapi.AuthConfig
	}{
		"name and password": {`{"username":"u","password":"p"}`, &runtimeapi.AuthConfig{Username: "u", Password: "p"}},
		"both encoded":      {`{"auth":"` + encode("u:p:q") + `"}`, &runtimeapi.AuthConfig{Username: "u", Password: "p:q"}},
		"both forms, of which the encoded one counts": {`{"username":"old","password":"old","auth":"` + encode("u:p") + `"}`,
			&runtimeapi.AuthConfig{Username: "u", Password: "p"}},
		"identity token of docker login": {`{"auth":"` + encode("00000000-0000-0000-0000-000000000000:") + `","identitytoken":"t"}`,
			&runtimeapi.AuthConfig{IdentityToken: "t"}},
		"nothing": {`{}`, &runtimeapi.AuthConfig{}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}}}}
		keyring := images.NewPullSecrets(secrets{"a": `{"auths":{"reg.example":` + c.login + `}}`})
		credentials, err := keyring.Credentials(t.Context(), pod, "reg.example/app")
		require.NoError(t, err)
		require.Len(t, credentials, 1)
		require.Equal(t, c.want, credentials[0].Auth, name)
	}
}

// TestHashesAreUpstreams lets a record of upstream's kubelet match a copy of its Secret, and the other way round.
func TestHashesAreUpstreams(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}}}}
	hash := func(login string) string {
		credentials, err := images.NewPullSecrets(secrets{"a": `{"auths":{"reg.example":` + login + `}}`}).Credentials(t.Context(), pod, "reg.example/app")
		require.NoError(t, err)
		require.Len(t, credentials, 1)
		return credentials[0].Source.Secret.CredentialHash
	}
	require.Equal(t, "3ecddda5c623129180bdb1603da2c3f0465846ee1a12bf259d1a8795d7977647", hash(`{"username":"u","password":"p<q","email":"e@example.org"}`))
	require.NotEqual(t, hash(`{"identitytoken":"a"}`), hash(`{"identitytoken":"b"}`))
}

// TestMalformedLogins are named without their content; the other logins of the same configuration count.
func TestMalformedLogins(t *testing.T) {
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	for _, auth := range []string{"user:top-secret", encode("top-secret"), encode("user:top-secret") + "!", "=", " "} {
		config := `{"auths":{"reg.example":{"username":"fine"},"reg.example/team":{"auth":"` + auth + `"}}}`
		file := filepath.Join(t.TempDir(), "config.json")
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}}}}
		for where, keyring := range map[string]images.Keyring{
			`imagePullSecret "a"`: images.NewPullSecrets(secrets{"a": config}), `"` + file + `"`: images.NewNodeConfig(file),
		} {
			credentials, err := keyring.Credentials(t.Context(), pod, "reg.example/team/app")
			require.ErrorContains(t, err, where+`: the login for "reg.example/team": its auth is not the Base64 encoding`, auth)
			require.NotContains(t, err.Error(), "top-secret")
			require.Len(t, credentials, 1)
			require.Equal(t, "fine", credentials[0].Auth.Username)
		}
	}
}

// TestLoginsNameNoServer lets the runtime send a login to the hosts that it pulls the image from: those of Docker Hub, and of mirrors, have
// other names than the image's registry.
func TestLoginsNameNoServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"auths":{"https://index.docker.io/v1/":{"username":"node"}}}`), 0o600))
	ring := images.Keyrings{
		images.NewPullSecrets(secrets{"a": `{"auths":{"https://index.docker.io/v1/":{"username":"u","password":"p"}}}`}), images.NewNodeConfig(file),
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}}}}
	credentials, err := ring.Credentials(t.Context(), pod, "acme/private")
	require.NoError(t, err)
	require.Len(t, credentials, 2)
	for _, credential := range credentials {
		require.Empty(t, credential.Auth.ServerAddress, "of %s", credential.Auth.Username)
	}
	require.Empty(t, images.PasswordCredential("u", "p", pullrecords.Source{}).Auth.ServerAddress)
}

// TestSecretsOfOneRegistry are tried in the Pod's order.
func TestSecretsOfOneRegistry(t *testing.T) {
	keyring := images.NewPullSecrets(secrets{
		"a": `{"auths":{"reg.example":{"username":"a"},"reg.example/team":{"username":"a-team"}}}`,
		"b": `{"auths":{"reg.example":{"username":"b"},"reg.example/team":{"username":"b-team"}}}`,
	})
	for _, c := range []struct{ secrets, found []string }{
		{[]string{"a", "b"}, []string{"a-team", "b-team", "a", "b"}},
		{[]string{"b", "a"}, []string{"b-team", "a-team", "b", "a"}},
	} {
		pod := &corev1.Pod{}
		for _, name := range c.secrets {
			pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
		}
		credentials, err := keyring.Credentials(t.Context(), pod, "reg.example/team/app")
		require.NoError(t, err)
		var found []string
		for _, credential := range credentials {
			found = append(found, credential.Auth.Username)
		}
		require.Equal(t, c.found, found)
	}
}

// TestNodeConfig pulls with the node's credentials, after those of the Pod.
func TestNodeConfig(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	ring := images.Keyrings{images.NewPullSecrets(secrets{"a": `{"auths":{"reg.example":{"auth":"dTpw"}}}`}),
		images.NewNodeConfig(first, second)}
	pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}}}}
	users := func() (names []string) {
		auths, err := ring.Credentials(t.Context(), pod, "reg.example/team/app")
		require.NoError(t, err)
		for _, auth := range auths {
			names = append(names, auth.Auth.Username)
		}
		return names
	}
	require.Equal(t, []string{"u"}, users(), "there is no file")
	write := func(path, content string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	write(second, `{"auths":{"reg.example":{"username":"node"},"reg.example/team":{"username":"team"},"x":{}}}`)
	require.Equal(t, []string{"u", "team", "node"}, users())
	write(first, `{"auths":{"reg.example":{"username":"other"}}}`)
	require.Equal(t, []string{"u", "other"}, users(), "the first file counts, as it is now")
	write(first, `top-secret`)
	auths, err := ring.Credentials(t.Context(), pod, "reg.example/team/app")
	require.ErrorContains(t, err, "not a Docker configuration")
	require.NotContains(t, err.Error(), "top-secret")
	require.Len(t, auths, 1, "the Pod's own still count")
}

func TestPullSecrets(t *testing.T) {
	keyring := images.NewPullSecrets(secrets{
		"a": `{"auths":{"reg.example":{"auth":"dTpw"},"reg.example/team":{"username":"team","password":"x"}}}`,
		"b": `{"auths":{"*.wild.example":{"username":"w"},"https://index.docker.io/v1/":{"username":"hub"}}}`,
		"c": `broken top-secret`,
		"d": `{"auths":{"unpadded.example":{"auth":"dXNlcjpwYXNz"},"short.example":{"auth":"dTpwdw"}}}`,
	})
	pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}, {Name: "d"}}}}
	for image, users := range map[string][]string{
		"reg.example/other:1":    {"u"},
		"reg.example/team/app:1": {"team", "u"},
		"x.wild.example/app":     {"w"},
		"x.y.wild.example/app":   {},
		"nginx":                  {"hub"},
		"quay.example/app":       {},
		"unpadded.example/app":   {"user"},
		"short.example/app":      {"u"},
	} {
		auths, err := keyring.Credentials(context.Background(), pod, image)
		require.NoError(t, err, image)
		got := []string{}
		for _, auth := range auths {
			got = append(got, auth.Auth.Username)
		}
		require.Equal(t, users, got, image)
	}
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "missing"}, {Name: "c"}, {Name: "a"}}
	auths, err := keyring.Credentials(context.Background(), pod, "reg.example/app")
	require.ErrorContains(t, err, `imagePullSecret "missing"`)
	require.NotContains(t, err.Error(), "top-secret")
	require.Len(t, auths, 1, "the others still count")
	require.Equal(t, "p", auths[0].Auth.Password)
}

// TestLoginsMatch has the logins that each image's pull tries, as Kubernetes' kubelet matches them.
func TestLoginsMatch(t *testing.T) {
	for _, c := range []struct {
		keys  []string
		image string
		found []string
	}{
		{[]string{"reg.example/team"}, "reg.example/team/app", []string{"reg.example/team"}},
		{[]string{"reg.example/team"}, "reg.example/team", []string{"reg.example/team"}},
		{[]string{"reg.example/team"}, "reg.example/team-b/app", []string{"reg.example/team"}},
		{[]string{"reg.example/te"}, "reg.example/team/app", []string{"reg.example/te"}},
		{[]string{"reg.example/team/"}, "reg.example/team/app", []string{"reg.example/team/"}},
		{[]string{"reg.example/team/"}, "reg.example/team", nil},
		{[]string{"reg.example/team/"}, "reg.example/team-b/app", nil},
		{[]string{"reg.example//team"}, "reg.example/team/app", nil},
		{[]string{"https://reg.example/v1/"}, "reg.example/app", []string{"https://reg.example/v1/"}},
		{[]string{"http://reg.example/v2/team"}, "reg.example/team/app", []string{"http://reg.example/v2/team"}},
		{[]string{"reg.example/v2"}, "reg.example/app", nil},
		{[]string{"reg.example/v2"}, "reg.example/v2-app", []string{"reg.example/v2"}},
		{[]string{"HTTPS://reg.example"}, "reg.example/app", nil},
		{[]string{"reg.example:443"}, "reg.example/app", nil},
		{[]string{"*.example:5000/team"}, "reg.example:5000/team/app", []string{"*.example:5000/team"}},
		{[]string{"reg.example/*"}, "reg.example/app", nil},
		{[]string{"[::1]:5000"}, "[::1]:5000/app", []string{"[::1]:5000"}},
		{[]string{"https://index.docker.io/v1/"}, "nginx", []string{"https://index.docker.io/v1/"}},
		{[]string{"https://index.docker.io/v1/", "docker.io"}, "nginx", []string{"docker.io"}},
		{[]string{"https://index.docker.io/v1/", "docker.io/acme"}, "acme/app", []string{"docker.io/acme"}},
		{[]string{"index.docker.io/library"}, "nginx", nil},
		{[]string{"https://index.docker.io/v1"}, "nginx", nil},
		{[]string{"docker.io/library"}, "nginx", []string{"docker.io/library"}},
		{[]string{"reg.example", "reg.example/team", "reg.example/te"}, "reg.example/team/app",
			[]string{"reg.example/team", "reg.example/te", "reg.example"}},
		{[]string{"*.example/team/app", "reg.example", "r*.example/team"}, "reg.example/team/app",
			[]string{"reg.example", "r*.example/team", "*.example/team/app"}},
		{[]string{"reg.example", "https://reg.example"}, "reg.example/app", []string{"https://reg.example", "reg.example"}},
	} {
		logins := map[string]any{}
		for _, key := range c.keys {
			logins[key] = map[string]string{"username": key}
		}
		config, err := json.Marshal(map[string]any{"auths": logins})
		require.NoError(t, err)
		pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}}}}
		credentials, err := images.NewPullSecrets(secrets{"a": string(config)}).Credentials(t.Context(), pod, c.image)
		require.NoError(t, err)
		var found []string
		for _, credential := range credentials {
			found = append(found, credential.Auth.Username)
		}
		assert.Equal(t, c.found, found, "%q for %s", c.keys, c.image)
	}
}
