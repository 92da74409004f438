package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/utils/clock"
)

const (
	// clientPair and servingPair are the names under which upstream's kubelet keeps its certificates, so that one can
	// take the place of the other.
	clientPair  = "kubelet-client"
	servingPair = "kubelet-server"

	// clientFailures and servingFailures are upstream's names of the counters of what failed.
	clientFailures  = "kubelet_certificate_manager_client_expiration_renew_errors"
	servingFailures = "kubelet_server_expiration_renew_errors"

	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
)

// Config says which node's certificate it is and where it is kept.
type Config struct {
	// NodeName is the node's; its user is system:node:NAME.
	NodeName string
	// Dir is made if it is not there, with mode 0700.
	Dir string
	// Lifetime is asked of the signer, which may give less or more; zero leaves it to the signer.
	Lifetime time.Duration
	// Clock tells whether a certificate has expired; nil is the real one.
	Clock clock.PassiveClock
}

// ClientsetFunc gives the client that asks for a certificate; current is the valid one there is, or nil.
type ClientsetFunc = certificate.ClientsetFunc

// Manager keeps one certificate. It is safe for concurrent use.
type Manager struct {
	// rotatorFor makes what asks for a certificate for these addresses; nil for a client's.
	rotatorFor func(ips []net.IP) (certificate.Manager, error)
	clock      clock.PassiveClock
	path       func() string
	// failures counts tries that were refused, were not answered in time, or gave what cannot be kept.
	failures prometheus.Counter
	// current is ahead of the manager's, which takes a new certificate over only after it was stored.
	current atomic.Pointer[tls.Certificate]

	rotatorChanged chan struct{} // has a value when manager is another one than runs

	mu          sync.Mutex // guards below
	rotator     certificate.Manager
	generation  int // counts managers: the last one's certificate counts
	subscribers []func()
	issued      chan struct{} // closed when the next certificate is there
}

// NewClient makes the Keeper of the node's client certificate (signer kubernetes.io/kube-apiserver-client-kubelet).
func NewClient(config Config, clients ClientsetFunc) (*Manager, error) {
	return newManager(config, clientPair, clientFailures, certificate.Config{
		ClientsetFn: clients, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages: certificate.DefaultKubeletClientGetUsages,
		Template:  &x509.CertificateRequest{Subject: subject(config.NodeName)},
	})
}

// NewServing makes the Keeper of the node's serving certificate for its name and addresses (signer
// kubernetes.io/kubelet-serving, whose requests the cluster's administrator approves).
func NewServing(config Config, client kubernetes.Interface, names []string, ips []net.IP) (*Manager, error) {
	if len(names) == 0 && len(ips) == 0 {
		return nil, errors.New("keep a serving certificate: it needs a name or an address")
	}
	configFor := func(ips []net.IP) certificate.Config {
		return certificate.Config{
			ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
			SignerName:  certificatesv1.KubeletServingSignerName, GetUsages: certificate.DefaultKubeletServingGetUsages,
			Template: &x509.CertificateRequest{
				Subject: subject(config.NodeName), DNSNames: slices.Clone(names), IPAddresses: slices.Clone(ips),
			},
		}
	}
	m, err := newManager(config, servingPair, servingFailures, configFor(ips))
	if err != nil {
		return nil, err
	}
	m.rotatorFor = func(ips []net.IP) (certificate.Manager, error) {
		return m.newRotator(config, servingPair, configFor(ips))
	}
	return m, nil
}

func subject(node string) pkix.Name {
	return pkix.Name{CommonName: nodeUserPrefix + node, Organization: []string{nodesGroup}}
}

func newManager(config Config, pair, failures string, rotatorConfig certificate.Config) (*Manager, error) {
	if config.NodeName == "" {
		return nil, errors.New("keep a node's certificate: Config.NodeName is empty")
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep certificates of node %s: %w", config.NodeName, err)
	}
	m := &Manager{
		clock: config.Clock, issued: make(chan struct{}), rotatorChanged: make(chan struct{}, 1),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: failures, Help: "Failed tries to have the certificate signed."}),
	}
	if m.clock == nil {
		m.clock = clock.RealClock{}
	}
	rotator, err := m.newRotator(config, pair, rotatorConfig)
	if err != nil {
		return nil, err
	}
	m.rotator = rotator
	m.current.Store(rotator.Current())
	return m, nil
}

// newRotator makes what asks for a certificate, and stores it where the one of before is.
func (m *Manager) newRotator(config Config, pair string, rotatorConfig certificate.Config) (certificate.Manager, error) {
	store, err := certificate.NewFileStore(pair, config.Dir, config.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("keep certificates of node %s in %s: %w", config.NodeName, config.Dir, err)
	}
	if m.path == nil { // it is the same for each
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
	rotatorConfig.CertificateRenewFailure = m.failures
	if config.Lifetime > 0 {
		rotatorConfig.RequestedCertificateLifetime = &config.Lifetime
	}
	rotator, err := certificate.NewManager(&rotatorConfig)
	if err != nil {
		return nil, fmt.Errorf("keep certificates of node %s in %s: %w", config.NodeName, config.Dir, err)
	}
	return rotator, nil
}

// Start asks for a certificate when there is none or it is time to, until ctx ends.
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
		case <-m.rotatorChanged:
		}
	}
	if running != nil {
		running.Stop()
	}
	return nil
}

// SetIPs has a serving certificate asked for that is for these addresses. The one of before is served until it is there.
func (m *Manager) SetIPs(ips []net.IP) error {
	if m.rotatorFor == nil {
		return errors.New("change the addresses of a certificate: it is a client's, and has none")
	}
	rotator, err := m.rotatorFor(ips)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.rotator = rotator
	m.mu.Unlock()
	select {
	case m.rotatorChanged <- struct{}{}:
	default:
	}
	return nil
}

// Current is the certificate of now, nil if there is none that is valid.
func (m *Manager) Current() *tls.Certificate {
	current := m.current.Load()
	if current == nil || current.Leaf == nil || m.clock.Now().After(current.Leaf.NotAfter) {
		return nil
	}
	return current
}

// Metrics counts the tries to have the certificate signed that failed, under upstream's name for such a certificate.
func (m *Manager) Metrics() prometheus.Collector { return m.failures }

// Path is the file that holds the current certificate and its key, in PEM form; it is replaced by each renewal.
func (m *Manager) Path() string { return m.path() }

// Wait returns the current certificate as soon as there is one, or the error of ctx.
func (m *Manager) Wait(ctx context.Context) (*tls.Certificate, error) {
	for {
		m.mu.Lock()
		issued := m.issued
		m.mu.Unlock()
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

func (m *Manager) renewed(pair *tls.Certificate) {
	m.mu.Lock()
	m.current.Store(pair) // with mu held: who saw it, and then asks to be told of renewals, is not told of this one
	subscribers := slices.Clone(m.subscribers)
	close(m.issued)
	m.issued = make(chan struct{})
	m.mu.Unlock()
	for _, fn := range subscribers {
		fn()
	}
}
