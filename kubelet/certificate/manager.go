package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// clientPair and servingPair are the names that upstream's kubelet gives its certificate files, so that either
	// kubelet can take over from the other.
	clientPair  = "kubelet-client"
	servingPair = "kubelet-server"
	proxyPair   = "kube-proxy-client"
	// ClientFile is the file below Config.Dir with the current client certificate and its key.
	ClientFile = clientPair + "-current.pem"

	// ProxyUser is the user of kube-proxy's certificate, whose permissions upstream's default roles grant.
	ProxyUser = "system:kube-proxy"

	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
)

// Config are the values of a Manager.
type Config struct {
	// NodeName is the node's name. The certificate's user is system:node:NAME.
	NodeName string
	// Dir is where the certificate is stored. It is created with mode 0700 if it does not exist.
	Dir string
	// InitialCert and InitialKey, in PEM form, are stored if nothing is stored yet, and renewed at once. Empty means none.
	InitialCert, InitialKey []byte
	// Lifetime is requested from the signer, which may grant less or more; zero leaves it to the signer.
	Lifetime time.Duration
	// DNSNames and IPs are what a serving certificate is valid for. A client certificate has none.
	DNSNames []string
	IPs      []net.IP
}

// Deps are what a Manager works with.
type Deps struct {
	// Clientset returns the client that submits certificate signing requests. It is required.
	Clientset ClientsetFunc
	// Clock is compared with a certificate's expiry; nil is the real clock.
	Clock clock.PassiveClock
	// Logger reports a damaged file; nil discards that.
	Logger *slog.Logger
}

// ClientsetFunc returns the client that submits a signing request; current is the valid certificate, or nil.
type ClientsetFunc = certificate.ClientsetFunc

// FixedClient returns a ClientsetFunc that always returns client.
func FixedClient(client kubernetes.Interface) ClientsetFunc {
	return func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil }
}

// Manager obtains, stores and renews one certificate. It is safe for concurrent use.
type Manager struct {
	// rotatorFor returns a rotator for a certificate with these names and addresses; it is nil for a client certificate.
	rotatorFor func(names []string, ips []net.IP) (certificate.Manager, error)
	clock      clock.PassiveClock
	logger     *slog.Logger
	path       func() string
	metrics    *managerMetrics
	// current is ahead of the rotator's certificate: the rotator updates its own only after storing the new one.
	current atomic.Pointer[tls.Certificate]

	rotatorChanged wakeup.Signal    // set when rotator is not the one that runs
	issued         wakeup.Broadcast // notified when a certificate was issued

	mu          sync.Mutex // guards all below
	rotator     certificate.Manager
	generation  int // number of rotators so far; only the last one's certificates are accepted
	subscribers []func()
}

// NewClient returns a Manager of the node's client certificate (signer kubernetes.io/kube-apiserver-client-kubelet).
func NewClient(deps Deps, config Config) (*Manager, error) {
	return newManager(deps, config, clientPair, clientMetrics(), certificate.Config{
		ClientsetFn: deps.Clientset, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages: certificate.DefaultKubeletClientGetUsages,
		Template:  &x509.CertificateRequest{Subject: subject(config.NodeName)},
	})
}

// NewProxy returns a Manager of the client certificate of the node's kube-proxy (signer kubernetes.io/kube-apiserver-client,
// whose requests `berth up` approves for its nodes).
func NewProxy(deps Deps, config Config) (*Manager, error) {
	return newManager(deps, config, proxyPair, proxyMetrics(), certificate.Config{
		ClientsetFn: deps.Clientset, SignerName: certificatesv1.KubeAPIServerClientSignerName,
		GetUsages: certificate.DefaultKubeletClientGetUsages,
		Template:  &x509.CertificateRequest{Subject: pkix.Name{CommonName: ProxyUser}},
	})
}

// NewServing returns a Manager of the node's serving certificate, valid for Config.DNSNames and Config.IPs (signer
// kubernetes.io/kubelet-serving, whose requests the cluster's administrator approves).
func NewServing(deps Deps, config Config) (*Manager, error) {
	if len(config.DNSNames) == 0 && len(config.IPs) == 0 {
		return nil, errors.New("certificate: a serving certificate needs Config.DNSNames or Config.IPs")
	}
	configFor := func(names []string, ips []net.IP) certificate.Config {
		return certificate.Config{
			ClientsetFn: deps.Clientset,
			SignerName:  certificatesv1.KubeletServingSignerName, GetUsages: certificate.DefaultKubeletServingGetUsages,
			Template: &x509.CertificateRequest{
				Subject: subject(config.NodeName), DNSNames: slices.Clone(names), IPAddresses: slices.Clone(ips),
			},
		}
	}
	m, err := newManager(deps, config, servingPair, servingMetrics(), configFor(config.DNSNames, config.IPs))
	if err != nil {
		return nil, err
	}
	m.rotatorFor = func(names []string, ips []net.IP) (certificate.Manager, error) {
		return m.newRotator(config, servingPair, configFor(names, ips))
	}
	return m, nil
}

func subject(node string) pkix.Name {
	return pkix.Name{CommonName: nodeUserPrefix + node, Organization: []string{nodesGroup}}
}

func newManager(deps Deps, config Config, pair string, names metricNames, rotatorConfig certificate.Config) (*Manager, error) {
	switch {
	case deps.Clientset == nil:
		return nil, errors.New("certificate: Deps.Clientset is required")
	case config.NodeName == "":
		return nil, errors.New("certificate: Config.NodeName is required")
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create certificate directory of node %s: %w", config.NodeName, err)
	}
	m := &Manager{
		clock: deps.Clock, logger: deps.Logger, rotatorChanged: wakeup.NewSignal(),
	}
	m.metrics = newManagerMetrics(names, m.ttl)
	rotator, err := m.newRotator(config, pair, rotatorConfig)
	if err != nil {
		return nil, err
	}
	m.rotator = rotator
	m.current.Store(rotator.Current())
	return m, nil
}

// newRotator returns client-go's manager for one certificate request. All of them store into the same file; a certificate
// of any but the newest is rejected.
func (m *Manager) newRotator(config Config, pair string, rotatorConfig certificate.Config) (certificate.Manager, error) {
	store, err := certificate.NewFileStore(pair, config.Dir, config.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("open certificate store of node %s in %s: %w", config.NodeName, config.Dir, err)
	}
	m.keepDamaged(store)
	if m.path == nil { // the same for every rotator
		m.path = store.CurrentPath
	}
	m.mu.Lock()
	m.generation++
	generation := m.generation
	m.mu.Unlock()
	rotatorConfig.CertificateStore = notifyingStore{store, m.renewed, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return generation == m.generation
	}}
	rotatorConfig.CertificateRenewFailure = m.metrics.failures
	if m.metrics.rotation != nil {
		rotatorConfig.CertificateRotation = m.metrics.rotation
	}
	rotatorConfig.BootstrapCertificatePEM, rotatorConfig.BootstrapKeyPEM = config.InitialCert, config.InitialKey
	if config.Lifetime > 0 {
		rotatorConfig.RequestedCertificateLifetime = &config.Lifetime
	}
	rotator, err := certificate.NewManager(&rotatorConfig)
	if err != nil {
		m.mu.Lock()
		if m.generation == generation {
			m.generation-- // the rotator before stays the newest
		}
		m.mu.Unlock()
		return nil, fmt.Errorf("manage certificate of node %s in %s: %w", config.NodeName, config.Dir, err)
	}
	return rotator, nil
}

// maxPairSize bounds what is read of a pair, in bytes.
const maxPairSize = 1 << 20

// keepDamaged sets the stored pair aside if it is damaged, so that a new one is requested.
func (m *Manager) keepDamaged(store certificate.FileStore) {
	path := store.CurrentPath() // a link to the newest pair
	if _, err := os.Lstat(path); err != nil {
		return // there is none
	}
	target, err := filepath.EvalSymlinks(path)
	if err == nil {
		_, err = statefile.Read(target, maxPairSize) // the store would read a file of any size
	}
	if err == nil {
		_, err = store.Current()
	}
	if err == nil || statefile.IsPassing(err) {
		return
	}
	statefile.SetAside(m.logger, path, err, "a new certificate is requested from the cluster")
}

// Start requests a certificate when there is none or the current one is due for renewal, until ctx ends.
func (m *Manager) Start(ctx context.Context) error {
	var running certificate.Manager
	for ctx.Err() == nil {
		m.mu.Lock()
		latest := m.rotator
		m.mu.Unlock()
		if latest != running {
			if running != nil {
				running.Stop()
			}
			running = latest
			running.Start()
		}
		select {
		case <-ctx.Done():
		case <-m.rotatorChanged.C():
		}
	}
	if running != nil {
		running.Stop()
	}
	return nil
}

// SetNames requests a serving certificate for these names and addresses. The previous one is served until the new one is issued.
func (m *Manager) SetNames(names []string, ips []net.IP) error {
	if m.rotatorFor == nil {
		return errors.New("set addresses of certificate: a client certificate has none")
	}
	rotator, err := m.rotatorFor(names, ips)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.rotator = rotator
	m.mu.Unlock()
	m.rotatorChanged.Notify()
	return nil
}

// Current returns the current certificate, or nil if there is none that is valid.
func (m *Manager) Current() *tls.Certificate {
	current := m.current.Load()
	if current == nil || current.Leaf == nil || m.clock.Now().After(current.Leaf.NotAfter) {
		return nil
	}
	return current
}

// ttl returns for how long the current certificate is still valid, negative if it has expired, and whether there is one.
func (m *Manager) ttl() (time.Duration, bool) {
	current := m.current.Load()
	if current == nil || current.Leaf == nil {
		return 0, false
	}
	return current.Leaf.NotAfter.Sub(m.clock.Now()), true
}

// Metrics counts failed certificate signing requests, and says for how long the certificate is valid, under upstream's names for this
// kind of certificate.
func (m *Manager) Metrics() prometheus.Collector { return m.metrics }

// Path is the file with the current certificate and its key, in PEM form; each renewal replaces it.
func (m *Manager) Path() string { return m.path() }

// Wait returns the current certificate as soon as there is one, or the error of ctx.
func (m *Manager) Wait(ctx context.Context) (*tls.Certificate, error) {
	for {
		issued := m.issued.Changed()
		if current := m.Current(); current != nil {
			return current, nil
		}
		select {
		case <-issued:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a certificate in %s: %w", m.Path(), context.Cause(ctx))
		}
	}
}

// OnRenewal calls fn after each renewal, from the goroutine that renews: fn must not block.
func (m *Manager) OnRenewal(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers = append(m.subscribers, fn)
}

// renewed makes pair the current certificate and notifies the waiters and subscribers.
func (m *Manager) renewed(pair *tls.Certificate) {
	m.mu.Lock()
	m.current.Store(pair) // under mu: whoever saw it before subscribing is not notified of it
	subscribers := slices.Clone(m.subscribers)
	m.mu.Unlock()
	m.issued.Notify()
	for _, fn := range subscribers {
		fn()
	}
}
