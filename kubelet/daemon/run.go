package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/watchdog"
	"github.com/berth-dev/berth/version"
)

// runtimeTimeout bounds the connection to the container runtime's socket before the start.
const runtimeTimeout = 5 * time.Second

// runner is what the steps of Run share.
type runner struct {
	config Config
	deps   Deps
	name   string // of the Node
}

// Run runs the kubelet until ctx ends, and returns when all has ended but the containers. Mistakes of the configuration are errors
// before anything is changed.
func Run(ctx context.Context, deps Deps, config Config) (err error) {
	deps.complete()
	if err := config.complete(); err != nil {
		return err
	}
	r := &runner{config: config, deps: deps}
	if r.name, err = config.nodeName(); err != nil {
		return err
	}
	if err := r.preflight(ctx); err != nil {
		return err
	}
	id := newIdentity()
	if !config.standalone() {
		id, err = r.identify(ctx)
		defer func() { id.stop() }()
		if err != nil {
			return err
		}
	} else {
		defer id.stop()
		deps.Logger.Info("running without an API server: only static Pods")
	}
	a, err := r.newAgent(ctx, id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	err = r.runAgent(ctx, a)
	if r.deps.OnStop != nil && ctx.Err() != nil {
		err = errors.Join(err, r.deps.OnStop(a))
	}
	return err
}

// preflight checks what must hold before anything is changed.
func (r *runner) preflight(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("a kubelet makes mounts and cgroups, so it must run as root (now uid %d): use sudo", os.Geteuid())
	}
	c := r.config.Settings.Source
	if r.config.standalone() && *c.EnableServer {
		if *c.Authentication.Webhook.Enabled {
			return errors.New("authentication.webhook.enabled (--authentication-token-webhook) true: it needs an API server, and there is no --kubeconfig")
		}
		if !r.config.Settings.Agent.Server.Auth.AllowAll {
			return errors.New("authorization.mode (--authorization-mode) Webhook: it needs an API server, and there is no --kubeconfig")
		}
	}
	if r.config.Settings.OpenAccess() {
		r.deps.Logger.Warn("everyone who reaches the kubelet's port may run commands in its containers, as without a configuration "+
			"file in Kubernetes", "remedy", "set authentication.anonymous.enabled to false (--anonymous-auth=false) and "+
			"authorization.mode to Webhook (--authorization-mode=Webhook)")
	}
	if !r.config.RequireRuntime {
		return nil
	}
	endpoints := []string{c.ContainerRuntimeEndpoint}
	if c.ImageServiceEndpoint != "" {
		endpoints = append(endpoints, c.ImageServiceEndpoint)
	}
	for _, endpoint := range endpoints {
		connection, err := (&net.Dialer{Timeout: runtimeTimeout}).DialContext(ctx, "unix", strings.TrimPrefix(endpoint, "unix://"))
		if err != nil {
			return fmt.Errorf("container runtime endpoint %q: %w: start the container runtime, or set containerRuntimeEndpoint to its socket",
				endpoint, err)
		}
		_ = connection.Close()
	}
	return nil
}

// newAgent returns the agent of the configuration with what the machine adds to it.
func (r *runner) newAgent(ctx context.Context, id *identity) (*agent.Agent, error) {
	config := r.config.Settings.Agent
	server := ""
	if id.server != nil {
		server = id.server.Host
	}
	find := func(ctx context.Context) ([]net.IP, error) { return r.config.Addresses.Find(ctx, r.name, server) }
	ips, err := find(ctx)
	if err != nil {
		return nil, err
	}
	r.warnOfForeign(r.config.Addresses.fixed())
	config.Node.Name, config.Node.IPs, config.Node.Labels, config.Node.Version = r.name, ips, r.config.Labels, version.Kubelet()
	config.Node.Cloud = r.config.cloud()
	config.RootDir = r.config.RootDir
	config.Lock = agent.LockConfig{File: r.config.LockFile, ExitOnContention: r.config.ExitOnLockContention}
	config.Cgroups.RuntimeCgroups = r.config.RuntimeCgroups
	config.Images.CredentialProviders, config.Images.CredentialProvidersDir = r.config.CredentialProviders, r.config.CredentialProvidersDir
	if err := r.serve(ctx, id, &config.Server, ips); err != nil {
		return nil, err
	}
	deps := agent.Deps{
		Timeline: r.deps.Timeline, Logger: r.deps.Logger, Clock: r.deps.Clock, Collectors: append(r.deps.Collectors, id.metrics...),
		OnIdle: r.deps.OnIdle, Processes: r.deps.Processes, Flags: r.deps.Flags, TracerProvider: r.deps.TracerProvider, Exits: r.deps.Exits,
		OnNode: id.onNode,
	}
	if r.config.Addresses.fixed() == nil {
		deps.FindIPs = find
		deps.OnNodeIPsChanged = func(ips []net.IP) { r.addressesChanged(id, ips) }
	}
	if id.rest != nil {
		if deps.Client, err = id.client(); err != nil {
			return nil, err
		}
		if deps.LeaseClient, err = id.client(); err != nil {
			return nil, err
		}
		r.deps.Logger.Info("joining the cluster", "cluster", server, "node", r.name, "address", ips[0])
	}
	return agent.New(deps, config)
}

// addressesChanged has connections and the serving certificate follow the node's addresses.
func (r *runner) addressesChanged(id *identity, ips []net.IP) {
	id.conns.CloseAll()
	if err := id.onAddressesChanged(ips); err != nil {
		r.deps.Logger.Error("serving certificate does not cover the node's current address", "addresses", ips, "error", err)
	}
}

// runAgent runs the agent and notifies systemd.
func (r *runner) runAgent(ctx context.Context, a *agent.Agent) error {
	manifests := r.config.Settings.Agent.Static.Path
	if _, err := os.Stat(manifests); manifests != "" && errors.Is(err, fs.ErrNotExist) { // it may be created later
		r.deps.Logger.Warn("the path of static Pods does not exist yet; there are none until it does", "path", manifests)
	}
	dog, err := watchdog.New(watchdog.Deps{Ready: a.Serving(), Healthy: a.Healthy, Logger: r.deps.Logger})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("daemon.runAgent", "", func() error { return a.Start(ctx) }))
	group.Go(contain.Func("daemon.runAgent", "", func() error { return dog.Start(ctx) }))
	return group.Wait()
}
