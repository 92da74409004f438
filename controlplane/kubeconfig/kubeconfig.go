// Package kubeconfig maintains one kubeconfig file for each identity of the cluster. That of people has address, authority,
// certificate and key in it; those of components refer to a file with certificate and key, which is renewed while they run.
package kubeconfig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/pki"
)

// name is the name of cluster, user and context in every file.
const name = "berth"

// Prepare makes the directories of kubeconfigs private and removes what an
// interrupted Ensure left in them.
func Prepare(dirs ...string) error {
	for _, dir := range dirs {
		if err := atomicfile.Dir(dir); err != nil {
			return err
		}
		if err := atomicfile.Clean(dir); err != nil {
			return err
		}
	}
	return nil
}

// Ensure makes path hold a kubeconfig that reaches server as id, with all that this needs in it, so that people can copy it. One
// that already does, and does not expire soon, is left unchanged; any other file is replaced, readable or not.
func Ensure(path, server string, authority *pki.Authority, id pki.Identity, now time.Time) error {
	if isCurrent(path, server, authority, id, now) {
		return nil
	}
	if err := keepDamaged(path); err != nil {
		return err
	}
	cert, key, err := authority.Issue(id, now)
	if err != nil {
		return fmt.Errorf("create kubeconfig %q: %w", path, err)
	}
	return write(path, server, authority, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

// EnsureComponent makes path, which ends with .kubeconfig, hold a kubeconfig that reaches server as id. Key and certificate are in a
// file beside it, path with .pem in place of .kubeconfig: a component that runs loads them again when they are renewed.
func EnsureComponent(path, server string, authority *pki.Authority, id pki.Identity, now time.Time) error {
	pair := strings.TrimSuffix(path, ".kubeconfig") + ".pem"
	if err := authority.EnsurePair(pair, id, now); err != nil {
		return fmt.Errorf("identity of kubeconfig %q: %w", path, err)
	}
	// A relative name is one in the kubeconfig's directory.
	user := &clientcmdapi.AuthInfo{ClientCertificate: filepath.Base(pair), ClientKey: filepath.Base(pair)}
	want, err := encode(server, authority, user)
	if err != nil {
		return fmt.Errorf("encode kubeconfig %q: %w", path, err)
	}
	if have, err := atomicfile.Read(path); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := keepDamaged(path); err != nil {
		return err
	}
	return atomicfile.Write(path, want)
}

func write(path, server string, authority *pki.Authority, user *clientcmdapi.AuthInfo) error {
	data, err := encode(server, authority, user)
	if err != nil {
		return fmt.Errorf("encode kubeconfig %q: %w", path, err)
	}
	return atomicfile.Write(path, data)
}

func encode(server string, authority *pki.Authority, user *clientcmdapi.AuthInfo) ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: server, CertificateAuthorityData: authority.CertPEM()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: user},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
}

// keepDamaged sets path aside if it exists and is no kubeconfig.
func keepDamaged(path string) error {
	err := checkReadable(path)
	if atomicfile.IsPassing(err) {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	if err != nil {
		atomicfile.SetAside(path, err, "the kubeconfig is made again")
	}
	return nil
}

// checkReadable returns an error if path exists and is no kubeconfig.
func checkReadable(path string) error {
	data, err := atomicfile.Read(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return err
	}
	_, _, err = currentContext(config)
	return err
}

func isCurrent(path, server string, authority *pki.Authority, id pki.Identity, now time.Time) bool {
	data, err := atomicfile.Read(path)
	if err != nil {
		return false
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return false
	}
	cluster, user, err := currentContext(config)
	if err != nil {
		return false
	}
	return cluster.Server == server &&
		bytes.Equal(cluster.CertificateAuthorityData, authority.CertPEM()) &&
		authority.Check(user.ClientCertificateData, user.ClientKeyData, id, now) == nil
}

func currentContext(config *clientcmdapi.Config) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	context, ok := config.Contexts[config.CurrentContext]
	if !ok {
		return nil, nil, errors.New("no current context")
	}
	cluster, ok := config.Clusters[context.Cluster]
	if !ok {
		return nil, nil, errors.New("no cluster")
	}
	user, ok := config.AuthInfos[context.AuthInfo]
	if !ok {
		return nil, nil, errors.New("no user")
	}
	return cluster, user, nil
}
