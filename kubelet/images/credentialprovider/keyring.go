package credentialprovider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kubelet/config/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
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
	// Account returns a service account, and Token a token of the Pod's account with the UID, which is bound to the Pod. Both may be nil if
	// no provider has tokenAttributes.
	Account func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Token   func(ctx context.Context, pod *corev1.Pod, account types.UID, audience string) (string, error)
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

// Credentials implements images.Keyring. It returns the credentials of all providers that match the image, in the order of their keys. If
// a provider fails, it returns an error beside the credentials of the others.
func (k *Keyring) Credentials(ctx context.Context, pod *corev1.Pod, image string) ([]images.Credential, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("read image name %q: %w", image, err)
	}
	var logins images.Logins
	var errs []error
	for _, p := range k.providers {
		if !p.matches(named) {
			continue
		}
		if err := k.addLogins(ctx, &logins, p, pod, named); err != nil {
			errs = append(errs, fmt.Errorf("credential provider %q: %w", p.config.Name, err))
		}
	}
	return logins.For(named), errors.Join(errs...)
}

// addLogins adds the logins of one provider.
func (k *Keyring) addLogins(ctx context.Context, logins *images.Logins, p *provider, pod *corev1.Pod, image reference.Named) error {
	req := request{image: image}
	var source pullrecords.Source
	if attributes := p.config.TokenAttributes; attributes != nil {
		if pod.Spec.ServiceAccountName == "" {
			if *attributes.RequireServiceAccount {
				return nil
			}
		} else {
			account, err := k.deps.Account(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
			if err != nil {
				return fmt.Errorf("get service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
			}
			var wanted bool
			if req.annotations, wanted = requestedAnnotations(account, attributes); !wanted {
				return nil
			}
			req.account = account
			req.token = func(ctx context.Context) (string, error) {
				return k.deps.Token(ctx, pod, account.UID, attributes.ServiceAccountTokenAudience)
			}
			source.ServiceAccount = &kubeletconfig.ImagePullServiceAccount{
				UID: string(account.UID), Namespace: account.Namespace, Name: account.Name,
			}
		}
	}
	auths, err := p.logins(ctx, req)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(auths)) {
		logins.Add(key, images.PasswordCredential(auths[key].Username, auths[key].Password, source))
	}
	return nil
}

// requestedAnnotations returns the annotations of the service account that the provider's configuration names. It returns false if the
// account lacks a required one: it is by these annotations that accounts ask for the provider.
func requestedAnnotations(account *corev1.ServiceAccount, attributes *configv1.ServiceAccountTokenAttributes) (map[string]string, bool) {
	found := map[string]string{}
	for _, key := range attributes.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return nil, false
		}
		found[key] = value
	}
	for _, key := range attributes.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			found[key] = value
		}
	}
	return found, true
}
