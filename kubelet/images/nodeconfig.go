package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// Keyrings queries each Keyring in turn and returns the credentials of all.
type Keyrings []Keyring

var _ Keyring = Keyrings{}

// Credentials implements Keyring.
func (k Keyrings) Credentials(ctx context.Context, pod *corev1.Pod, image string) ([]Credential, error) {
	var all []Credential
	var errs []error
	for _, each := range k {
		found, err := each.Credentials(ctx, pod, image)
		all, errs = append(all, found...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// NodeConfig is a Keyring of the node's Docker configuration, which every Pod may use. Its files are read at each pull:
// a pull takes far longer, and they may be replaced at any time.
type NodeConfig struct{ paths []string }

var _ Keyring = (*NodeConfig)(nil)

// NewNodeConfig returns a NodeConfig of the files at these paths. The first one that exists is read.
func NewNodeConfig(paths ...string) *NodeConfig { return &NodeConfig{paths: paths} }

// Credentials implements Keyring. No error contains the file's content.
func (n *NodeConfig) Credentials(_ context.Context, _ *corev1.Pod, image string) ([]Credential, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("read image name %q: %w", image, err)
	}
	for _, path := range n.paths {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the node's registry credentials: %w", err)
		}
		var config struct {
			Auths map[string]login `json:"auths"`
		}
		if json.Unmarshal(data, &config) != nil {
			return nil, fmt.Errorf("read the node's registry credentials: %q is not a Docker configuration", path)
		}
		var logins Logins
		err = logins.addConfig(config.Auths, func(login, *runtimeapi.AuthConfig) pullrecords.Source { return pullrecords.Source{} })
		if err != nil {
			err = fmt.Errorf("read the node's registry credentials: %q: %w", path, err)
		}
		return logins.For(named), err
	}
	return nil, nil
}
