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

	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/certificate"
)

// identity is how the node speaks to the API server. Its certificates, if it keeps any itself, are renewed until stop.
type identity struct {
	// rest has the node's credentials, once for each client that is to have connections of its own.
	rest func() (*rest.Config, error)
	// server is where the API server is and whom it is known by.
	server *rest.Config

	// conns makes its connections. They are closed when the node has another address: nobody answers to the old one.
	conns *connrotation.Dialer
	// onAddressesChanged makes the serving certificate one for these addresses.
	onAddressesChanged func(ips []net.IP) error
	// metrics are those of the certificates that it keeps.
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

// runManager runs the keeper until stop.
func (i *identity) runManager(ctx context.Context, manager *certificate.Keeper) {
	ctx, cancel := context.WithCancel(ctx)
	i.cancel = append(i.cancel, cancel)
	i.metrics = append(i.metrics, manager.Metrics())
	i.running.Go(func() { _ = manager.Start(ctx) }) // it ends with ctx, and never else
}

// client makes a client with the node's credentials and a connection of its own.
func (i *identity) client() (*kubernetes.Clientset, error) {
	config, err := i.rest()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make an API client: %w", err)
	}
	return client, nil
}

// identify finds out who the node is to the API server: whom the kubeconfig says, or, with --bootstrap-kubeconfig, the
// owner of a client certificate that the node has signed for itself and keeps renewing.
func (f nodeFlags) identify(ctx context.Context, name string, logger *slog.Logger) (*identity, error) {
	id := &identity{
		conns:              connrotation.NewDialer(certificate.Dial),
		onAddressesChanged: func([]net.IP) error { return nil }, // a certificate that was given is not ours to change
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
		logger.Info("asking for a client certificate", "cluster", id.server.Host, "node", name)
	}
	if _, err := manager.Wait(ctx); err != nil {
		return id, err
	}
	id.rest = func() (*rest.Config, error) { return certificate.RESTConfig(id.server, manager) }
	return id, certificate.WriteKubeconfig(f.kubeconfig, id.server, manager)
}

// useRotatingDialer has connections made that can be closed, if the node's address may change.
func (f nodeFlags) useRotatingDialer(id *identity, config *rest.Config) {
	if f.ip == "" && config != nil {
		config.Dial = id.conns.DialContext
	}
}

// clientCertificateManager makes what keeps the node's client certificate, and notes where the API server is.
func (f nodeFlags) clientCertificateManager(id *identity, name string) (manager *certificate.Keeper, err error) {
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
	manager, err = certificate.NewClient(certificate.Config{NodeName: name, Dir: f.certificateDir()},
		func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current != nil { // it asks for its own renewal
				return renewing()
			}
			config, err := loadKubeconfig(f.bootstrap)
			if err != nil {
				return nil, err
			}
			return kubernetes.NewForConfig(config)
		})
	return manager, err
}

// server is where the API server is: as the kubeconfig of an earlier start says, or else the bootstrap's.
func (f nodeFlags) server() (*rest.Config, error) {
	path := f.kubeconfig
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		path = f.bootstrap
	}
	return loadKubeconfig(path)
}

// serve completes the node's server with a serving certificate: the one named, one that the cluster signs, or one that
// the node signs itself.
func (f nodeFlags) serve(ctx context.Context, id *identity, server *kubelet.ServerConfig, name string, ip net.IP) error {
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
	manager, err := certificate.NewServing(certificate.Config{NodeName: name, Dir: f.certificateDir()}, client, []string{name}, []net.IP{ip})
	if err != nil {
		return err
	}
	id.runManager(ctx, manager)
	id.onAddressesChanged = manager.SetIPs
	server.CertFile, server.KeyFile, server.CertLater = manager.Path(), manager.Path(), true
	return f.completeClientCA(server, id.server)
}
