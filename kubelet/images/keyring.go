package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// Secrets returns Secrets. The result must not be modified.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// PullSecrets is a Keyring of the Secrets that Pods name in spec.imagePullSecrets.
type PullSecrets struct{ secrets Secrets }

var _ Keyring = (*PullSecrets)(nil)

// NewPullSecrets returns a PullSecrets.
func NewPullSecrets(secrets Secrets) *PullSecrets { return &PullSecrets{secrets: secrets} }

// login is one entry of a Docker configuration.
type login struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// Credentials implements Keyring. It returns the credentials that match the image, the most specific first. If a Secret
// is missing or invalid, it returns an error beside the credentials of the others; no error contains a Secret's
// content.
func (p *PullSecrets) Credentials(ctx context.Context, pod *corev1.Pod, image string) ([]Credential, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("read image name %q: %w", image, err)
	}
	var found []match
	var errs []error
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, err := p.secrets.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			errs = append(errs, fmt.Errorf("get imagePullSecret %q: %w", ref.Name, err))
			continue
		}
		logins, err := loginsOf(secret)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, m := range matchingLogins(logins, named) {
			m.Source.Secret = &kubeletconfig.ImagePullSecret{
				UID: string(secret.UID), Namespace: secret.Namespace, Name: secret.Name, CredentialHash: credentialHash(m.Auth),
			}
			found = append(found, m)
		}
	}
	return bestFirst(found), errors.Join(errs...)
}

// credentialHash identifies the content of a credential, whatever Secret contains it.
func credentialHash(auth *runtimeapi.AuthConfig) string {
	sum := sha256.New()
	for _, part := range []string{auth.Username, auth.Password, auth.IdentityToken, auth.RegistryToken} {
		fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// match is a login that matches an image, with its key in the Docker configuration.
type match struct {
	key string
	Credential
}

func matchingLogins(logins map[string]login, image reference.Named) (found []match) {
	for key, l := range logins {
		if matches(key, image) {
			found = append(found, match{key, Credential{Auth: l.auth(reference.Domain(image))}})
		}
	}
	return found
}

// Matches reports whether a pattern of a Docker configuration or credential provider matches the image.
func Matches(pattern string, image reference.Named) bool { return matches(pattern, image) }

// MatchCredentials returns the credentials of the logins whose pattern matches the image, the most specific first, all
// with the given source.
func MatchCredentials(logins map[string]Login, image reference.Named, source pullrecords.Source) []Credential {
	var found []match
	for pattern, l := range logins {
		if matches(pattern, image) {
			auth := login{Username: l.Username, Password: l.Password}.auth(reference.Domain(image))
			found = append(found, match{pattern, Credential{Auth: auth, Source: source}})
		}
	}
	return bestFirst(found)
}

// Login is a user name and a password. Both may be empty.
type Login struct{ Username, Password string }

// bestFirst orders logins by the length of the part of the image's name that their key names.
func bestFirst(found []match) []Credential {
	slices.SortStableFunc(found, func(a, b match) int {
		return cmp.Or(cmp.Compare(len(b.key), len(a.key)), cmp.Compare(a.key, b.key))
	})
	credentials := make([]Credential, 0, len(found))
	for _, m := range found {
		credentials = append(credentials, m.Credential)
	}
	return credentials
}

// loginsOf parses the Docker configuration of a Secret of either type.
func loginsOf(secret *corev1.Secret) (map[string]login, error) {
	var config struct {
		Auths map[string]login `json:"auths"`
	}
	var into any = &config
	data, ok := secret.Data[corev1.DockerConfigJsonKey]
	if !ok {
		into = &config.Auths
		if data, ok = secret.Data[corev1.DockerConfigKey]; !ok {
			return nil, fmt.Errorf("read imagePullSecret %q: it has neither the key %q nor %q", secret.Name,
				corev1.DockerConfigJsonKey, corev1.DockerConfigKey)
		}
	}
	if json.Unmarshal(data, into) != nil { // its error might contain the content
		return nil, fmt.Errorf("read imagePullSecret %q: not a Docker configuration", secret.Name)
	}
	return config.Auths, nil
}

// auth converts the login to the CRI's form.
func (l login) auth(server string) *runtimeapi.AuthConfig {
	user, password := l.Username, l.Password
	encoded := strings.TrimRight(strings.TrimSpace(l.Auth), "=") // some programs write it without padding
	if raw, err := base64.RawStdEncoding.DecodeString(encoded); err == nil && user == "" {
		user, password, _ = strings.Cut(string(raw), ":")
	}
	return &runtimeapi.AuthConfig{
		Username: user, Password: password, IdentityToken: l.IdentityToken, RegistryToken: l.RegistryToken,
		// A URL: from a host alone the runtime would parse no host, and send no credentials.
		ServerAddress: "https://" + server,
	}
}

// matches reports whether a key of a Docker configuration (a host, optionally with a path, a scheme, or a "*" in a part
// of the host name) matches the image.
func matches(key string, image reference.Named) bool {
	if !strings.Contains(key, "://") {
		key = "https://" + key
	}
	u, err := url.Parse(key)
	if err != nil {
		return false
	}
	host, port, _ := strings.Cut(u.Host, ":")
	domain, wantedPort, _ := strings.Cut(reference.Domain(image), ":")
	if port != wantedPort {
		return false // no wildcard stands for a port
	}
	if host == "index.docker.io" {
		host = "docker.io"
	}
	parts, wanted := strings.Split(host, "."), strings.Split(domain, ".")
	if len(parts) != len(wanted) {
		return false
	}
	for i := range parts {
		if ok, err := path.Match(parts[i], wanted[i]); err != nil || !ok {
			return false
		}
	}
	prefix := strings.Trim(u.Path, "/")
	if prefix == "v1" || prefix == "v2" {
		prefix = "" // the address of the registry's API, not a path in the registry
	}
	repository := reference.Path(image)
	return prefix == "" || repository == prefix || strings.HasPrefix(repository, prefix+"/")
}
