package kubelet

import (
	"context"
	"fmt"
	"math"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/authzretry"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/images/credentialprovider"
)

// WithCredentialProviders asks the programs in dir for logins to registries, as the configuration, a file or a directory,
// says. Upstream has flags of the command line for it.
func WithCredentialProviders(configuration, dir string) Option {
	return func(k *Kubelet) { k.cfg.CredentialProviders, k.cfg.CredentialProvidersDir = configuration, dir }
}

// defaultPullQPS is the default of registryPullQPS.
const defaultPullQPS = 5

// pullsOf takes over how images are pulled: one at a time unless the configuration says otherwise.
func (c *Config) pullsOf(in *kubeletconfig.KubeletConfiguration) error {
	c.PullQPS, c.PullBurst = defaultPullQPS, int(in.RegistryBurst)
	if in.RegistryPullQPS != nil {
		c.PullQPS = float32(*in.RegistryPullQPS)
	}
	if c.PullQPS < 0 || c.PullBurst < 0 {
		return fmt.Errorf("registryPullQPS %v and registryBurst %d: want no negative number", c.PullQPS, c.PullBurst)
	}
	serial := in.SerializeImagePulls
	switch most := in.MaxParallelImagePulls; {
	case most != nil && *most < 1:
		return fmt.Errorf("maxParallelImagePulls %d: want at least 1", *most)
	case most != nil && *most > 1 && serial != nil && *serial:
		return fmt.Errorf("maxParallelImagePulls %d: serializeImagePulls has to be false for more than 1", *most)
	case most != nil:
		c.MaxParallelPulls = int(*most)
	case serial == nil || *serial:
		c.MaxParallelPulls = 1
	default:
		c.MaxParallelPulls = math.MaxInt32 // as many as want to
	}
	return nil
}

// keyring finds the logins for registries: those of the Pod first, then the node's own, from the places where upstream
// looks for them, and then those that programs have.
func (k *Kubelet) keyring() (images.Keyring, error) {
	ring := images.Keyrings{images.NewPullSecrets(k.objects), images.NewNodeConfig(
		filepath.Join(k.cfg.RootDir, "config.json"), "/root/.docker/config.json", "/.docker/config.json",
	)}
	if k.cfg.CredentialProviders == "" {
		return ring, nil
	}
	providers, err := credentialprovider.Load(k.cfg.CredentialProviders)
	if err != nil {
		return nil, err
	}
	programs, err := credentialprovider.New(credentialprovider.Deps{
		Account: k.serviceAccount, Token: k.tokens.Request, Clock: k.deps.Clock,
	}, credentialprovider.Config{Providers: providers, Dir: k.cfg.CredentialProvidersDir})
	if err != nil {
		return nil, err
	}
	return append(ring, programs), nil
}

// serviceAccount gets the account of one of the node's Pods.
func (k *Kubelet) serviceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return authzretry.Do(ctx, k.deps.Clock, func(ctx context.Context) (*corev1.ServiceAccount, error) {
		return k.deps.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	})
}
