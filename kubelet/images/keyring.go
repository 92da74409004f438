package images

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	Email         string `json:"email"`
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
	var logins Logins
	var errs []error
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, err := p.secrets.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			errs = append(errs, fmt.Errorf("get imagePullSecret %q: %w", ref.Name, err))
			continue
		}
		config, err := loginsOf(secret)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := logins.addConfig(config, func(l login, auth *runtimeapi.AuthConfig) pullrecords.Source {
			return pullrecords.Source{Secret: &kubeletconfig.ImagePullSecret{
				UID: string(secret.UID), Namespace: secret.Namespace, Name: secret.Name, CredentialHash: credentialHash(l, auth),
			}}
		}); err != nil {
			errs = append(errs, fmt.Errorf("read imagePullSecret %q: %w", ref.Name, err))
		}
	}
	return logins.For(named), errors.Join(errs...)
}

// credentialHash identifies the content of a credential, whatever Secret contains it. For a login without tokens it is upstream's, so that the
// records of either kubelet are good for the other.
func credentialHash(l login, auth *runtimeapi.AuthConfig) string {
	data, err := json.Marshal(struct {
		Username      string `json:"username,omitempty"`
		Password      string `json:"password,omitempty"`
		Email         string `json:"email,omitempty"`
		IdentityToken string `json:"identitytoken,omitempty"`
		RegistryToken string `json:"registrytoken,omitempty"`
	}{auth.Username, auth.Password, l.Email, auth.IdentityToken, auth.RegistryToken})
	if err != nil {
		return "" // cannot happen; without a hash only the Secret's identity counts
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// loginsOf parses the Docker configuration of a Secret of either type.
func loginsOf(secret *corev1.Secret) (map[string]login, error) {
	var config struct {
		Auths map[string]login `json:"auths"`
	}
	var into any = &config
	key := corev1.DockerConfigJsonKey
	switch secret.Type {
	case corev1.SecretTypeDockerConfigJson:
	case corev1.SecretTypeDockercfg:
		into, key = &config.Auths, corev1.DockerConfigKey
	default:
		return nil, fmt.Errorf("read imagePullSecret %q: its type is %q: want %q, as `kubectl create secret docker-registry` makes it, or %q",
			secret.Name, secret.Type, corev1.SecretTypeDockerConfigJson, corev1.SecretTypeDockercfg)
	}
	data, ok := secret.Data[key]
	if !ok {
		return nil, fmt.Errorf("read imagePullSecret %q: it has no key %q", secret.Name, key)
	}
	if json.Unmarshal(data, into) != nil { // its error might contain the content
		return nil, fmt.Errorf("read imagePullSecret %q: not a Docker configuration", secret.Name)
	}
	return config.Auths, nil
}

// addConfig adds the logins of a Docker configuration; source returns where one comes from. A login that is malformed is left out: the error
// names its key, and not its content.
func (l *Logins) addConfig(config map[string]login, source func(login, *runtimeapi.AuthConfig) pullrecords.Source) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(config)) {
		auth, err := config[key].auth()
		if err != nil {
			errs = append(errs, fmt.Errorf("the login for %q: %w", key, err))
			continue
		}
		l.Add(key, Credential{Auth: auth, Source: source(config[key], auth)})
	}
	return errors.Join(errs...)
}

// auth converts the login to the CRI's form. It names no server: containerd would send the login to the host of that name alone, and the
// images of Docker Hub and those of mirrors come from hosts of other names.
func (l login) auth() (*runtimeapi.AuthConfig, error) {
	auth := &runtimeapi.AuthConfig{
		Username: l.Username, Password: l.Password, IdentityToken: l.IdentityToken, RegistryToken: l.RegistryToken,
	}
	switch {
	case l.IdentityToken != "":
		// The token stands for both; runtimes would prefer them, and docker puts a name without password beside it.
		auth.Username, auth.Password = "", ""
	case l.Auth != "":
		encoded := strings.TrimRight(strings.TrimSpace(l.Auth), "=") // some programs write it without padding
		raw, err := base64.RawStdEncoding.DecodeString(encoded)
		user, password, ok := strings.Cut(string(raw), ":")
		if err != nil || !ok {
			return nil, errors.New("its auth is not the Base64 encoding of user:password")
		}
		auth.Username, auth.Password = user, password
	}
	return auth, nil
}

// PasswordCredential returns the credential of a user name and a password, which may both be empty.
func PasswordCredential(user, password string, source pullrecords.Source) Credential {
	return Credential{Auth: &runtimeapi.AuthConfig{Username: user, Password: password}, Source: source}
}
