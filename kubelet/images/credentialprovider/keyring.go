package credentialprovider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

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
	// Providers are the programs, as Load returns them, and Dir is where they lie.
	Providers []configv1.CredentialProvider
	Dir       string
}

// Deps are what a Keyring needs from others.
type Deps struct {
	// Account gets a service account, and Token a token of the Pod's that is bound to the Pod. Both may be nil if no
	// provider has tokenAttributes.
	Account func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Token   func(ctx context.Context, pod *corev1.Pod, audience string) (string, error)
	// Clock may be nil.
	Clock clock.PassiveClock
}

// Keyring finds credentials by asking the programs. It is safe for concurrent use.
type Keyring struct {
	deps      Deps
	providers []*provider
}

var _ images.Keyring = (*Keyring)(nil)

// New makes a Keyring. A program that is not there is an error now, not at the first pull.
func New(deps Deps, config Config) (*Keyring, error) {
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	k := &Keyring{deps: deps}
	for _, one := range config.Providers {
		program := filepath.Join(config.Dir, one.Name)
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("credential provider %q: want a program at %s: %w", one.Name, program, err)
		}
		if one.TokenAttributes != nil && (deps.Account == nil || deps.Token == nil) {
			return nil, fmt.Errorf("credential provider %q: there are no tokens of service accounts here", one.Name)
		}
		k.providers = append(k.providers, newProvider(one, program, os.Environ(), deps.Clock))
	}
	return k, nil
}

// Credentials implements images.Keyring: those of all providers that answer for the image. A provider that fails is part
// of the error, beside which the others' credentials are still returned.
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

// requestedAnnotations are the account's annotations that the provider is to see.
func requestedAnnotations(account *corev1.ServiceAccount, attributes *configv1.ServiceAccountTokenAttributes) (map[string]string, error) {
	found := map[string]string{}
	for _, key := range attributes.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return nil, fmt.Errorf("service account %s/%s lacks the annotation %q", account.Namespace, account.Name, key)
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

// loginsOf takes the logins out of an answer.
func loginsOf(answer *callv1.CredentialProviderResponse) map[string]images.Login {
	logins := make(map[string]images.Login, len(answer.Auth))
	for pattern, auth := range answer.Auth {
		logins[pattern] = images.Login{Username: auth.Username, Password: auth.Password}
	}
	return logins
}
