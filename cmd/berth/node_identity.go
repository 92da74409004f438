package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/certificate"
)

// identity is the node's identity towards the API server. Certificates that it manages are renewed until stop.
type identity struct {
	// rest returns a config with the node's credentials. Each call returns one for connections of its own.
	rest func() (*rest.Config, error)
	// server has the address and the CA of the API server.
	server *rest.Config

	// conns dials all connections. They are closed when the node's address changes: the old address receives no replies.
	conns *connrotation.Dialer
	// onAddressesChanged replaces the serving certificate by one for these addresses.
	onAddressesChanged func(ips []net.IP) error
	// metrics are the collectors of the certificate managers.
	metrics []prometheus.Collector
	cancel  []context.CancelFunc
	running sync.WaitGroup
}

func (i *identity) stop() {
	for _, cancel := range i.cancel {
		cancel()
	}
	i.running.Wait()
}

// runManager runs the certificate manager until stop.
func (i *identity) runManager(ctx context.Context, manager *certificate.Manager) {
	ctx, cancel := context.WithCancel(ctx)
	i.cancel = append(i.cancel, cancel)
	i.metrics = append(i.metrics, manager.Metrics())
	i.running.Go(func() { _ = manager.Start(ctx) }) // it returns only when ctx is done
}

// client returns a client with the node's credentials and a connection of its own.
func (i *identity) client() (*kubernetes.Clientset, error) {
	config, err := i.rest()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	return client, nil
}

// identify returns the node's identity: that of the kubeconfig, or, with --bootstrap-kubeconfig, that of a client
// certificate which the node requests and renews.
func (f nodeFlags) identify(ctx context.Context, name string, logger *slog.Logger) (*identity, error) {
	id := &identity{
		conns:              connrotation.NewDialer(certificate.Dial),
		onAddressesChanged: func([]net.IP) error { return nil }, // a certificate given by flags is never replaced
	}
	if f.bootstrap == "" {
		config, err := loadKubeconfig(f.kubeconfig)
		f.useRotatingDialer(id, config)
		id.server, id.rest = config, func() (*rest.Config, error) { return config, nil }
		return id, err
	}
	manager, err := f.clientCertificateManager(id, name)
	if err != nil {
		return id, err
	}
	id.runManager(ctx, manager)
	if manager.Current() == nil {
		logger.Info("requesting a client certificate", "cluster", id.server.Host, "node", name)
	}
	if _, err := manager.Wait(ctx); err != nil {
		return id, err
	}
	id.rest = func() (*rest.Config, error) { return certificate.RESTConfig(id.server, manager) }
	return id, certificate.WriteKubeconfig(f.kubeconfig, id.server, manager)
}

// useRotatingDialer sets a dialer whose connections can be closed, if the node's address may change.
func (f nodeFlags) useRotatingDialer(id *identity, config *rest.Config) {
	if f.ip == "" && config != nil {
		config.Dial = id.conns.DialContext
	}
}

// clientCertificateManager returns the manager of the node's client certificate, and sets id.server.
func (f nodeFlags) clientCertificateManager(id *identity, name string) (manager *certificate.Manager, err error) {
	id.server, err = f.server()
	if err != nil {
		return nil, err
	}
	f.useRotatingDialer(id, id.server)
	renewing := sync.OnceValues(func() (kubernetes.Interface, error) {
		config, err := certificate.RESTConfig(id.server, manager)
		if err != nil {
			return nil, err
		}
		return kubernetes.NewForConfig(config)
	})
	clientset := func(current *tls.Certificate) (kubernetes.Interface, error) {
		if current != nil { // the current certificate requests its renewal
			return renewing()
		}
		config, err := loadKubeconfig(f.bootstrap)
		if err != nil {
			return nil, err
		}
		return kubernetes.NewForConfig(config)
	}
	manager, err = certificate.NewClient(certificate.Deps{Clientset: clientset},
		certificate.Config{NodeName: name, Dir: f.certificateDir()})
	return manager, err
}

// server returns the API server's address and CA: from the kubeconfig that an earlier start wrote, or from the bootstrap
// kubeconfig.
func (f nodeFlags) server() (*rest.Config, error) {
	path := f.kubeconfig
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		path = f.bootstrap
	}
	return loadKubeconfig(path)
}

// serve sets the serving certificate of the node's server: the one that flags name, one that the cluster signs, or a
// self-signed one.
func (f nodeFlags) serve(ctx context.Context, id *identity, server *agent.ServerConfig, name string, ip net.IP) error {
	if !f.rotateServer {
		return f.completeServer(server, id, name, ip)
	}
	if f.certFile != "" {
		return usageError{errors.New("--rotate-server-certificates and --tls-cert-file: choose one")}
	}
	client, err := id.client()
	if err != nil {
		return err
	}
	manager, err := certificate.NewServing(certificate.Deps{Clientset: certificate.FixedClient(client)}, certificate.Config{
		NodeName: name, Dir: f.certificateDir(), DNSNames: []string{name}, IPs: []net.IP{ip},
	})
	if err != nil {
		return err
	}
	id.runManager(ctx, manager)
	id.onAddressesChanged = manager.SetIPs
	server.CertFile, server.KeyFile, server.CertLater = manager.Path(), manager.Path(), true
	return f.completeClientCA(server, id.server)
}
