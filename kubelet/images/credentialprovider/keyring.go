package credentialprovider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kubelet/config/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	callv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// Config are the values of a Keyring.
type Config struct {
	// Providers are the providers' configurations as Load returns them, and Dir is the directory of their programs.
	Providers []configv1.CredentialProvider
	Dir       string
}

// Deps are what a Keyring works with.
type Deps struct {
	// Account returns a service account, and Token a token that is bound to the Pod. Both may be nil if no provider has
	// tokenAttributes.
	Account func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Token   func(ctx context.Context, pod *corev1.Pod, audience string) (string, error)
	// OnRun, if set, is called after each run of a provider's program, with why it failed.
	OnRun func(provider string, took time.Duration, err error)
	// Clock may be nil.
	Clock clock.PassiveClock
}

// Keyring obtains credentials from the providers. It is safe for concurrent use.
type Keyring struct {
	deps      Deps
	providers []*provider
}

var _ images.Keyring = (*Keyring)(nil)

// New returns a Keyring. A missing program is an error at once, not at the first pull.
func New(deps Deps, config Config) (*Keyring, error) {
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.OnRun == nil {
		deps.OnRun = func(string, time.Duration, error) {}
	}
	k := &Keyring{deps: deps}
	for _, provider := range config.Providers {
		program := filepath.Join(config.Dir, provider.Name)
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("credential provider %q: program %s: %w", provider.Name, program, err)
		}
		if provider.TokenAttributes != nil && (deps.Account == nil || deps.Token == nil) {
			return nil, fmt.Errorf("credential provider %q: it needs service account tokens, which are not available", provider.Name)
		}
		k.providers = append(k.providers, newProvider(provider, program, os.Environ(), &deps))
	}
	return k, nil
}

// Credentials implements images.Keyring. It returns the credentials of all providers that match the image. If a
// provider fails, it returns an error beside the credentials of the others.
func (k *Keyring) Credentials(ctx context.Context, pod *corev1.Pod, image string) ([]images.Credential, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("read image name %q: %w", image, err)
	}
	var all []images.Credential
	var errs []error
	for _, p := range k.providers {
		if !p.matches(named) {
			continue
		}
		found, err := k.credentialsFrom(ctx, p, pod, named)
		if err != nil {
			errs = append(errs, fmt.Errorf("credential provider %q: %w", p.config.Name, err))
		}
		all = append(all, found...)
	}
	return all, errors.Join(errs...)
}

// credentialsFrom returns the credentials of one provider.
func (k *Keyring) credentialsFrom(ctx context.Context, p *provider, pod *corev1.Pod, image reference.Named) ([]images.Credential, error) {
	req := request{image: image}
	var source pullrecords.Source
	if attributes := p.config.TokenAttributes; attributes != nil {
		if pod.Spec.ServiceAccountName == "" {
			if *attributes.RequireServiceAccount {
				return nil, nil
			}
		} else {
			account, err := k.deps.Account(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
			if err != nil {
				return nil, fmt.Errorf("get service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
			}
			if req.annotations, err = requestedAnnotations(account, attributes); err != nil {
				return nil, err
			}
			req.account = account
			req.token = func(ctx context.Context) (string, error) {
				return k.deps.Token(ctx, pod, attributes.ServiceAccountTokenAudience)
			}
			source.ServiceAccount = &kubeletconfig.ImagePullServiceAccount{
				UID: string(account.UID), Namespace: account.Namespace, Name: account.Name,
			}
		}
	}
	logins, err := p.logins(ctx, req)
	if err != nil {
		return nil, err
	}
	return images.MatchCredentials(logins, image, source), nil
}

// requestedAnnotations returns the annotations of the service account that the provider's configuration names.
func requestedAnnotations(account *corev1.ServiceAccount, attributes *configv1.ServiceAccountTokenAttributes) (map[string]string, error) {
	found := map[string]string{}
	for _, key := range attributes.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return nil, fmt.Errorf("service account %s/%s has no annotation %q", account.Namespace, account.Name, key)
		}
		found[key] = value
	}
	for _, key := range attributes.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			found[key] = value
		}
	}
	return found, nil
}

// loginsOf returns the logins of a response.
func loginsOf(response *callv1.CredentialProviderResponse) map[string]images.Login {
	logins := make(map[string]images.Login, len(response.Auth))
	for pattern, auth := range response.Auth {
		logins[pattern] = images.Login{Username: auth.Username, Password: auth.Password}
	}
	return logins
}
