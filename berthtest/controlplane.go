package berthtest

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
)

// errNotStarted is the error of what needs a running cluster.
var errNotStarted = errors.New("the environment has not been started: call Environment.Start first")

// ControlPlane is the control plane of an Environment. It has those fields and methods of envtest's that have a meaning for a whole
// cluster; code that uses another one, such as a program's path, does not compile.
type ControlPlane struct {
	// APIServer has flags of the API server. GetAPIServer sets it if it is nil.
	APIServer *APIServer

	running *running
}

// APIServer is the API server of an Environment.
type APIServer struct{ arguments *Arguments }

// GetAPIServer returns the API server, for its flags before Start.
func (p *ControlPlane) GetAPIServer() *APIServer {
	if p.APIServer == nil {
		p.APIServer = &APIServer{}
	}
	return p.APIServer
}

// Configure returns the flags of the API server, which count at Start.
func (s *APIServer) Configure() *Arguments {
	if s.arguments == nil {
		s.arguments = EmptyArguments()
	}
	return s.arguments
}

// APIURL returns the URL of the API server; nil before Start.
func (p *ControlPlane) APIURL() *url.URL {
	if p.running == nil {
		return nil
	}
	parsed, err := url.Parse(p.running.config.Host)
	if err != nil {
		return nil // client-go has used it
	}
	return parsed
}

// RESTClientConfig returns the configuration of a client with all rights.
func (p *ControlPlane) RESTClientConfig() (*rest.Config, error) {
	if p.running == nil {
		return nil, errNotStarted
	}
	return rest.CopyConfig(p.running.config), nil
}

// KubeCtl returns a kubectl with all rights; nil before Start.
func (p *ControlPlane) KubeCtl() *KubeCtl {
	if p.running == nil {
		return nil
	}
	return &KubeCtl{Path: p.running.kubectl(), Opts: []string{"--kubeconfig=" + p.running.cluster.Kubeconfig()}}
}

// AddUser is Environment.AddUser.
func (p *ControlPlane) AddUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	if p.running == nil {
		return nil, fmt.Errorf("add user %s: %w", user.Name, errNotStarted)
	}
	return p.running.addUser(user, base)
}

// passedFlags are the flags of kube-apiserver that `berth up` has, too, with the same meaning.
var passedFlags = []string{"feature-gates", "runtime-config"}

// args returns the flags for `berth up`. A flag that it does not have is an error.
func (p *ControlPlane) args() (args []string, err error) {
	if p.APIServer == nil || p.APIServer.arguments == nil {
		return nil, nil
	}
	given := p.APIServer.arguments.values
	for _, flag := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(passedFlags, flag) {
			return nil, fmt.Errorf("ControlPlane.APIServer: --%s cannot be set, because a whole cluster depends on it; %s can: remove it",
				flag, strings.Join(passedFlags, " and "))
		}
		args = append(args, "--"+flag, strings.Join(given[flag], ","))
	}
	return args, nil
}

// Arguments are flags of a program.
type Arguments struct{ values map[string][]string }

// EmptyArguments returns no flags.
func EmptyArguments() *Arguments { return &Arguments{values: map[string][]string{}} }

// Append adds values to a flag.
func (a *Arguments) Append(flag string, values ...string) *Arguments {
	a.values[flag] = append(a.values[flag], values...)
	return a
}

// AppendNoDefaults is Append: no flag has defaults here.
func (a *Arguments) AppendNoDefaults(flag string, values ...string) *Arguments {
	return a.Append(flag, values...)
}

// Set replaces the values of a flag.
func (a *Arguments) Set(flag string, values ...string) *Arguments {
	a.values[flag] = slices.Clone(values)
	return a
}

// Disable removes a flag.
func (a *Arguments) Disable(flag string) *Arguments {
	delete(a.values, flag)
	return a
}
