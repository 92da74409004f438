package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/up/removal"
)

// NetworkDeps are the dependencies of RunNetwork. All are required.
type NetworkDeps struct {
	// Member has the clients and what the cluster says about itself; its RunKubelet is not used.
	Member Member
	Logger *slog.Logger
}

// NetworkConfig is the configuration of RunNetwork.
type NetworkConfig struct {
	// Layout says where kube-proxy's files are: its kubeconfig is Layout.Kubeconfig("kube-proxy").
	Layout Layout
	// Proxy runs kube-proxy.
	Proxy bool
}

// RunNetwork runs what a kubelet with a container runtime of its own needs to be a node of a cluster of `berth up`: the
// routes to the other nodes' Pods, and kube-proxy. It returns when ctx is done. The rules of kube-proxy are removed then;
// the routes stay, because the Pods run on.
func RunNetwork(ctx context.Context, deps NetworkDeps, config NetworkConfig) (err error) {
	if deps.Logger == nil || deps.Member.Network == nil || deps.Member.Node == nil {
		return errors.New("up: NetworkDeps.Logger, Member.Network and Member.Node are required")
	}
	c := &Cluster{Layout: config.Layout, config: RunConfig{Member: &deps.Member}, clock: clock.RealClock{}, logger: deps.Logger}
	report := func(text string) { deps.Logger.Warn(text) }
	parts := newGroup(ctx)
	defer parts.stop()
	run := func(name string, make func() (runFunc, error)) {
		parts.start(func(ctx context.Context) {
			supervise(ctx, c.clock, name, report, func(ctx context.Context) error {
				run, err := make()
				if err != nil {
					return err
				}
				return run(ctx)
			})
		})
	}
	if config.Proxy {
		lock, err := c.startNetworkProxy(ctx)
		if err != nil {
			return err
		}
		defer func() {
			parts.stop()
			_ = lock.Close() // closing nil does nothing
			err = errors.Join(err, c.removeProxyRules(context.WithoutCancel(ctx)), removal.Tree(c.RunDir))
		}()
		run(proxyName, c.newProxy)
	}
	run(routesName, c.newPodRoutes)
	<-ctx.Done()
	return nil
}

// startNetworkProxy prepares the machine for kube-proxy.
func (c *Cluster) startNetworkProxy(ctx context.Context) (lock *os.File, err error) {
	if err := CheckServices(ctx); err != nil {
		return nil, err
	}
	for _, dir := range []string{c.RunDir, filepath.Dir(c.Log(proxyName))} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("prepare %s: %w", proxyName, err)
		}
	}
	if _, err := stopStale(ctx, c.RunDir); err != nil {
		return nil, err
	}
	if lock, err = c.claimProxy(ctx); err != nil {
		return nil, err
	}
	for _, module := range neededModules() {
		if module.component != proxyName || !module.IsMissing() {
			continue
		}
		if err := module.Load(ctx); err != nil {
			c.logger.Warn("a kernel module is missing", "module", module.Name, "without", module.Without, "error", err)
		}
	}
	return lock, filterBridge()
}
