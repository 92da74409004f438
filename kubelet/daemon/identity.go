package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/certificate"
)

// identity is the node's identity towards the API server. Certificates that it manages are renewed until stop.
type identity struct {
	// rest returns a config with the node's credentials. Each call returns one for connections of its own.
	rest func() (*rest.Config, error)
	// server has the address and the CA of the API server. With bootstrap it is that of the bootstrap kubeconfig.
	server    *rest.Config
	bootstrap bool

	// conns dials all connections. They are closed when the node's address changes: the old address receives no replies.
	conns *connrotation.Dialer
	// onAddressesChanged replaces the serving certificate by one for these addresses.
	onAddressesChanged func(ips []net.IP) error
	// onNode takes each new state of the Node; nil if none is wanted.
	onNode func(node *corev1.Node)
	// metrics are the collectors of the certificate managers.
	metrics []prometheus.Collector
	cancel  []context.CancelFunc
	running sync.WaitGroup
}

func newIdentity() *identity {
	return &identity{
		conns:              connrotation.NewDialer(certificate.Dial),
		onAddressesChanged: func([]net.IP) error { return nil }, // a configured certificate is never replaced
	}
}

func (i *identity) stop() {
	for _, cancel := range i.cancel {
		cancel()
	}
	i.running.Wait()
}

// runManager runs the certificate manager until stop, or until the returned function is called.
func (i *identity) runManager(ctx context.Context, manager *certificate.Manager) (cancel func()) {
	ctx, cancel = context.WithCancel(ctx)
	i.cancel = append(i.cancel, cancel)
	i.running.Go(contain.Loop(ctx, "daemon.runManager", "", func(ctx context.Context) { _ = manager.Start(ctx) })) // it returns only when ctx is done
	return cancel
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

// identify returns the node's identity: that of the kubeconfig, or that of a client certificate which the node requests and, where
// that is configured, renews. The API server is asked first who the node is; see probe.
func (r *runner) identify(ctx context.Context) (*identity, error) {
	c, id := &r.config, newIdentity()
	stored, err := r.storedPair()
	if err != nil {
		return id, err
	}
	id.bootstrap = c.BootstrapKubeconfig != "" && (isMissing(c.Kubeconfig) || stored == nil && !r.usable(c.Kubeconfig))
	path, node := c.Kubeconfig, r.name
	if id.bootstrap {
		path, node = c.BootstrapKubeconfig, "" // this identity may not read the Node
	}
	if id.server, err = loadKubeconfig(path, c.Settings.API); err != nil {
		return id, err
	}
	if c.Addresses.fixed() == nil {
		id.server.Dial = id.conns.DialContext
	}
	asking := id.server
	if stored != nil {
		asking = rest.AnonymousClientConfig(id.server)
		asking.CertData, asking.KeyData, node = stored.cert, stored.key, r.name
	}
	if err := r.probe(ctx, asking, path, node); err != nil {
		return id, err
	}
	if !id.bootstrap && !c.Settings.Certificates.RotateClient {
		id.rest = func() (*rest.Config, error) { return id.server, nil }
		return id, nil
	}
	return id, r.request(ctx, id)
}

// storedPair returns the client certificate that an earlier start has stored; nil if there is none, it has expired, or the node
// does not manage its certificate.
func (r *runner) storedPair() (*pemPair, error) {
	if !r.config.Settings.Certificates.RotateClient && r.config.BootstrapKubeconfig == "" {
		return nil, nil
	}
	path := filepath.Join(r.config.CertDir, certificate.ClientFile)
	if isMissing(path) {
		return nil, nil
	}
	leaf, pair, err := clientPair(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CertFile: path, KeyFile: path}})
	if err != nil {
		return nil, fmt.Errorf("%w: repair or delete it", err)
	}
	if !r.deps.Clock.Now().Before(leaf.NotAfter) {
		return nil, nil
	}
	return pair, nil
}

// request has the cluster sign the node's client certificate, and renew it where that is configured. An identity that began with the
// bootstrap kubeconfig writes the kubeconfig. It does not wait for the first certificate, because static Pods need none: requests to
// the API server wait for it.
func (r *runner) request(ctx context.Context, id *identity) error {
	manager, err := r.newClientManager(id)
	if err != nil {
		return err
	}
	id.metrics = append(id.metrics, manager.Metrics())
	stop := id.runManager(ctx, manager)
	if manager.Current() == nil {
		r.deps.Logger.Info("requesting a client certificate", "cluster", id.server.Host, "node", r.name)
	}
	id.rest = func() (*rest.Config, error) {
		config, err := certificate.RESTConfig(id.server, manager)
		if err == nil {
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &waitingTransport{manager: manager, next: next} })
		}
		return config, err
	}
	issued := func() error {
		if !r.config.Settings.Certificates.RotateClient {
			stop()
		}
		if !id.bootstrap {
			return nil // the kubeconfig is its owner's
		}
		return certificate.WriteKubeconfig(r.config.Kubeconfig, id.server, manager)
	}
	if manager.Current() != nil {
		return issued()
	}
	ctx, cancel := context.WithCancel(ctx)
	id.cancel = append(id.cancel, cancel)
	id.running.Go(func() {
		defer contain.Recover("daemon.writeKubeconfig", "")
		if _, err := manager.Wait(ctx); err != nil {
			return // the kubelet ends
		}
		if err := issued(); err != nil {
			r.deps.Logger.Error("failed to write the kubeconfig: the next start requests another certificate", "error", err)
		}
	})
	return nil
}

// waitingTransport sends requests when there is a certificate.
type waitingTransport struct {
	manager *certificate.Manager
	next    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *waitingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if _, err := t.manager.Wait(request.Context()); err != nil {
		return nil, err
	}
	return t.next.RoundTrip(request)
}

// newClientManager returns the manager of the node's client certificate, which begins with the one of the kubeconfig.
func (r *runner) newClientManager(id *identity) (manager *certificate.Manager, err error) {
	c := &r.config
	own := certificate.Config{NodeName: r.name, Dir: c.CertDir}
	if !id.bootstrap {
		_, pair, err := clientPair(id.server)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %q: %w", c.Kubeconfig, err)
		}
		if pair != nil {
			own.InitialCert, own.InitialKey = pair.cert, pair.key
		}
	}
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
		path := c.Kubeconfig
		if c.BootstrapKubeconfig != "" && !isMissing(c.BootstrapKubeconfig) {
			path = c.BootstrapKubeconfig
		}
		config, err := loadKubeconfig(path, c.Settings.API)
		if err != nil {
			return nil, err
		}
		return kubernetes.NewForConfig(config)
	}
	manager, err = certificate.NewClient(certificate.Deps{Clientset: clientset, Logger: r.deps.Logger}, own)
	return manager, err
}
