package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/certificate"
	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/join"
)

// networkClient returns a client with the identity of the node's kube-proxy, which it requests with the node's identity, and
// writes the kubeconfig of that identity. The cluster approves the request once the Node exists.
//
// The certificate is renewed until ctx ends. Its metrics are registered in metrics.
func (f nodeFlags) networkClient(ctx context.Context, server *rest.Config, client kubernetes.Interface, name, kubeconfig string, metrics prometheus.Registerer) (kubernetes.Interface, error) {
	if err := os.MkdirAll(filepath.Dir(kubeconfig), 0o700); err != nil {
		return nil, fmt.Errorf("store the identity of kube-proxy: %w", err)
	}
	manager, err := certificate.NewProxy(certificate.Deps{Clientset: certificate.FixedClient(client), Logger: slog.Default()},
		certificate.Config{NodeName: name, Dir: f.certificateDir()})
	if err != nil {
		return nil, err
	}
	if err := metrics.Register(manager.Metrics()); err != nil {
		return nil, fmt.Errorf("register the metrics of kube-proxy's certificate: %w", err)
	}
	go contain.Loop(ctx, "berth.networkCertificate", "", func(ctx context.Context) { _ = manager.Start(ctx) })() // it ends with ctx, and with it the process
	if _, err := manager.Wait(ctx); err != nil {
		return nil, err
	}
	if err := certificate.WriteKubeconfig(kubeconfig, server, manager); err != nil {
		return nil, err
	}
	config, err := certificate.RESTConfig(server, manager)
	if err != nil {
		return nil, err
	}
	network, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	return network, nil
}

// minInfoDelay and maxInfoDelay bound the wait before an API server that cannot be reached is tried again.
const minInfoDelay, maxInfoDelay = time.Second, time.Minute

// nodeClient returns a client with the identity of a kubeconfig, whose certificate may be replaced.
func nodeClient(kubeconfig string) (*rest.Config, kubernetes.Interface, error) {
	config, err := loadKubeconfig(kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("create an API client: %w", err)
	}
	return config, client, nil
}

// waitInfo is join.ReadInfo, repeated until the kubelet has its identity and the API server can be reached.
func waitInfo(ctx context.Context, kubeconfig string, logger *slog.Logger) (info join.Info, ok bool, err error) {
	for delay := minInfoDelay; ; delay = min(2*delay, maxInfoDelay) {
		var client kubernetes.Interface
		if _, client, err = nodeClient(kubeconfig); err == nil {
			if info, ok, err = join.ReadInfo(ctx, client); err == nil {
				return info, ok, nil
			}
		}
		if ctx.Err() != nil {
			return join.Info{}, false, nil
		}
		logger.Warn("failed to find out whether this is a cluster of berth up; retrying", "delay", delay, "error", err)
		if !wakeup.Sleep(ctx, clock.RealClock{}, delay) {
			return join.Info{}, false, nil
		}
	}
}

// runNetwork runs kube-proxy and the routes to other nodes' Pods beside a kubelet with a runtime of its own, if the cluster is
// one of `berth up`. It registers the metrics of kube-proxy's certificate in metrics.
func (f nodeFlags) runNetwork(ctx context.Context, metrics prometheus.Registerer, logger *slog.Logger) error {
	name, err := f.nodeName()
	if err != nil {
		return err
	}
	info, ok, err := waitInfo(ctx, f.kubeconfig, logger)
	if err != nil || ctx.Err() != nil {
		return err
	}
	server, client, err := nodeClient(f.kubeconfig)
	if err != nil {
		return err
	}
	if !ok {
		if f.join.proxy == proxyAlways && ctx.Err() == nil {
			return fmt.Errorf("--kube-proxy %s: the cluster at %s was not made by berth up, and its nodes' kube-proxies are its own", proxyAlways, server.Host)
		}
		return nil
	}
	config, err := up.Config{
		DataDir: filepath.Join(f.root, "berth"), BinDir: f.join.binDir, NodeName: name, PodCIDR: info.PodCIDRs(),
		ServiceCIDR: info.ServiceCIDRs(), Server: server.Host, ExternalRuntime: true,
	}.Complete()
	if err != nil {
		return err
	}
	layout, err := up.NewLayout(config)
	if err != nil {
		return err
	}
	logger.Info("this is a cluster of berth up; requesting the certificate of kube-proxy and Pod routes", "node", name)
	network, err := f.networkClient(ctx, server, client, name, layout.Kubeconfig("kube-proxy"), metrics)
	if err != nil {
		return err
	}
	logger.Info("joined a cluster of berth up", "kubeProxy", f.wantsProxy(info), "podCIDR", info.PodCIDRs())
	return up.RunNetwork(ctx, up.NetworkDeps{Member: up.Member{Info: info, Node: client, Network: network}, Logger: logger},
		up.NetworkConfig{Layout: layout, Proxy: f.wantsProxy(info)})
}
