package agent

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/kubelet/authzretry"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/images/credentialprovider"
	"github.com/berth-dev/berth/kubelet/metrics"
)

// newKeyring returns the credentials for registries: those of the Pod first, then the node's own from the usual files, and
// then those of credential provider plugins.
func newKeyring(base *base, s *storageComponents) (images.Keyring, error) {
	config := &base.config
	ring := images.Keyrings{images.NewPullSecrets(s.objects), images.NewNodeConfig(
		filepath.Join(config.RootDir, "config.json"), "/root/.docker/config.json", "/.docker/config.json",
	)}
	if config.Images.CredentialProviders == "" {
		return ring, nil
	}
	providers, hash, err := credentialprovider.Load(config.Images.CredentialProviders)
	if err != nil {
		return nil, err
	}
	plugins, err := credentialprovider.New(credentialprovider.Deps{
		Token: s.tokens.Request, Clock: base.deps.Clock, OnRun: metrics.NewCredentialProviders(base.metrics.main, hash).Ran,
		Account: func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
			return authzretry.Do(ctx, base.deps.Clock, func(ctx context.Context) (*corev1.ServiceAccount, error) {
				return base.deps.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
			})
		},
	}, credentialprovider.Config{Providers: providers, Dir: config.Images.CredentialProvidersDir})
	if err != nil {
		return nil, err
	}
	return append(ring, plugins), nil
}
