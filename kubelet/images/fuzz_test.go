package images

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// loginsFrom adds the logins of a Secret of either type to none.
func loginsFrom(kind corev1.SecretType, key string, content []byte) (Logins, error) {
	var logins Logins
	config, err := loginsOf(&corev1.Secret{Type: kind, Data: map[string][]byte{key: content}})
	if err == nil {
		err = logins.addConfig(config, func(login, *runtimeapi.AuthConfig) pullrecords.Source { return pullrecords.Source{} })
	}
	return logins, err
}

// FuzzSecret reads arbitrary Docker configurations of Secrets of both types: no error has a part of a password.
func FuzzSecret(f *testing.F) {
	f.Add([]byte(`{"auths":{"reg.example":{"username":"u","password":"p"},"https://index.docker.io/v1/":{"auth":"dTpw"}}}`), "secret-word")
	f.Add([]byte(`{"reg.example:5000/team":{"auth":"dTpw=","identitytoken":"t"},"*.example":null}`), "secret-word")
	f.Add([]byte(`{"auths":{"http://[::1":{"auth":"secret-word"}}}`), "secret-word")
	f.Fuzz(func(t *testing.T, content []byte, password string) {
		if len(password) < 8 {
			return // it may be in an error by chance
		}
		encoded, err := json.Marshal(map[string]any{"auths": map[string]any{"reg.example": map[string]string{"auth": password, "password": password}}})
		require.NoError(t, err)
		named, err := reference.ParseNormalizedNamed("reg.example/team/app")
		require.NoError(t, err)
		for _, config := range [][]byte{content, encoded} {
			for kind, key := range map[corev1.SecretType]string{
				corev1.SecretTypeDockerConfigJson: corev1.DockerConfigJsonKey, corev1.SecretTypeDockercfg: corev1.DockerConfigKey,
			} {
				logins, err := loginsFrom(kind, key, config)
				if err != nil && string(config) == string(encoded) {
					require.NotContains(t, err.Error(), password)
				}
				for _, credential := range logins.For(named) {
					require.Empty(t, credential.Auth.GetServerAddress())
				}
			}
		}
	})
}

// FuzzLoginHost adds a login under an arbitrary key: only images of the host that it names get it, where it has no pattern.
func FuzzLoginHost(f *testing.F) {
	f.Add("reg.example:5000/team", "reg.example:5000/team/app:1")
	f.Add("https://index.docker.io/v1/", "nginx")
	f.Add("user@reg.example", "user/app")
	f.Add("reg.example%2fx/", "reg.example/x/app")
	f.Add("//evil.example", "evil.example/app")
	f.Fuzz(func(t *testing.T, key, image string) {
		named, err := reference.ParseNormalizedNamed(image)
		if err != nil {
			return
		}
		var logins Logins
		logins.Add(key, PasswordCredential("u", "p", pullrecords.Source{}))
		if len(logins.For(named)) == 0 {
			return
		}
		if !strings.HasPrefix(key, "https://") && !strings.HasPrefix(key, "http://") {
			key = "https://" + key
		}
		u, err := url.Parse(key)
		require.NoError(t, err)
		if u.Host == hubKey && reference.Domain(named) == hubHost || strings.ContainsAny(u.Host, `*?[\`) {
			return
		}
		require.Equal(t, u.Host, reference.Domain(named), "the login of %q goes to %q", key, image)
	})
}
