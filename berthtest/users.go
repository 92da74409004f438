package berthtest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/internal/programs"
)

// User is the name and the groups that a client certificate of Environment.AddUser has.
type User struct {
	Name   string
	Groups []string
}

// AuthenticatedUser is a user of an Environment.
type AuthenticatedUser struct {
	config  *rest.Config
	running *running
	kubectl *KubeCtl
}

// Config returns the configuration of the user's clients.
func (u *AuthenticatedUser) Config() *rest.Config { return u.config }

// KubeConfig returns the user's kubeconfig file.
func (u AuthenticatedUser) KubeConfig() ([]byte, error) { return kubeconfigOf(u.config) }

// Kubectl returns a kubectl that works as the user.
func (u *AuthenticatedUser) Kubectl() (*KubeCtl, error) {
	if u.kubectl != nil {
		return u.kubectl, nil
	}
	data, err := u.KubeConfig()
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(u.running.cluster.Dir(), "*.kubeconfig") // with mode 0600
	if err != nil {
		return nil, fmt.Errorf("write the user's kubeconfig: %w", err)
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("write the user's kubeconfig: %w", err)
	}
	u.kubectl = &KubeCtl{Path: u.running.kubectl(), Opts: []string{"--kubeconfig=" + file.Name()}}
	return u.kubectl, nil
}

// KubeCtl runs the program kubectl.
type KubeCtl struct {
	// Path is that of the program.
	Path string
	// Opts are arguments of each call, before its own.
	Opts []string
}

// Run runs kubectl and returns what it printed.
func (k *KubeCtl) Run(args ...string) (stdout, stderr io.Reader, err error) {
	var out, errOut bytes.Buffer
	cmd := exec.Command(k.Path, append(append([]string(nil), k.Opts...), args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return &out, &errOut, err
}

// kubectl is the program that belongs to this berth.
func (r *running) kubectl() string {
	dir, err := programs.DirOf(r.berth)
	if err != nil {
		dir = filepath.Dir(r.berth) // where the error of the call says what is missing
	}
	return filepath.Join(dir, "kubectl")
}

// addUser makes a client certificate, which the cluster's authority signs.
func (r *running) addUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	if user.Name == "" {
		return nil, errors.New("add a user: User.Name is required")
	}
	pki := filepath.Join(r.cluster.DataDir(), "pki")
	cert, key, err := clientCertificate(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"), user)
	if err != nil {
		return nil, fmt.Errorf("add user %s: %w", user.Name, err)
	}
	config := &rest.Config{}
	if base != nil {
		config = rest.CopyConfig(base)
	}
	config.Host, config.APIPath = r.config.Host, r.config.APIPath
	config.CAData, config.CertData, config.KeyData = r.config.CAData, cert, key
	return &AuthenticatedUser{config: config, running: r}, nil
}

// kubeconfigOf returns a kubeconfig file with what the configuration says.
func kubeconfigOf(config *rest.Config) ([]byte, error) {
	const name = "envtest" // as envtest's has
	filled := rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(filled); err != nil {
		return nil, fmt.Errorf("encode the kubeconfig: %w", err)
	}
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server: filled.Host + filled.APIPath, CertificateAuthorityData: filled.CAData, InsecureSkipTLSVerify: filled.Insecure, TLSServerName: filled.ServerName,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificateData: filled.CertData, ClientKeyData: filled.KeyData, Token: filled.BearerToken, TokenFile: filled.BearerTokenFile,
			Username: filled.Username, Password: filled.Password, Exec: filled.ExecProvider,
		}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the kubeconfig: %w", err)
	}
	return data, nil
}

// currentConfig returns the configuration for an existing cluster: that of the flag -kubeconfig, of $KUBECONFIG, of the Pod that this
// process runs in, or of ~/.kube/config.
func currentConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if given := flag.Lookup("kubeconfig"); given != nil && given.Value.String() != "" {
		rules.ExplicitPath = given.Value.String()
	} else if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		if config, err := rest.InClusterConfig(); err == nil {
			return config, nil
		}
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the existing cluster (%s, or UseExistingCluster): %w", existingClusterEnv, err)
	}
	config.QPS, config.Burst = 20, 30 // as controller-runtime's
	return config, nil
}
