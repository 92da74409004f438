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

// Keeper keeps one certificate. It is safe for concurrent use.
type Keeper struct {
	// remake makes what asks for a certificate for these addresses; nil for a client's.
	remake func(ips []net.IP) (certificate.Manager, error)
	clock  clock.PassiveClock
	path   func() string
	// failures counts tries that were refused, were not answered in time, or gave what cannot be kept.
	failures prometheus.Counter
	// current is ahead of the manager's, which takes a new certificate over only after it was stored.
	current atomic.Pointer[tls.Certificate]

	moved chan struct{} // has a value when manager is another one than runs

	mu      sync.Mutex // guards below
	manager certificate.Manager
	made    int // counts managers: the last one's certificate counts
	changed []func()
	got     chan struct{} // closed when the next certificate is there
}

// NewClient makes the Keeper of the node's client certificate (signer kubernetes.io/kube-apiserver-client-kubelet).
func NewClient(cfg Config, clients ClientsetFunc) (*Keeper, error) {
	return newKeeper(cfg, clientPair, clientFailures, certificate.Config{
		ClientsetFn: clients, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages: certificate.DefaultKubeletClientGetUsages,
		Template:  &x509.CertificateRequest{Subject: subject(cfg.NodeName)},
	})
}

// NewServing makes the Keeper of the node's serving certificate for its name and addresses (signer
// kubernetes.io/kubelet-serving, whose requests the cluster's administrator approves).
func NewServing(cfg Config, client kubernetes.Interface, names []string, ips []net.IP) (*Keeper, error) {
	if len(names) == 0 && len(ips) == 0 {
		return nil, errors.New("keep a serving certificate: it needs a name or an address")
	}
	wanted := func(ips []net.IP) certificate.Config {
		return certificate.Config{
			ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
			SignerName:  certificatesv1.KubeletServingSignerName, GetUsages: certificate.DefaultKubeletServingGetUsages,
			Template: &x509.CertificateRequest{
				Subject: subject(cfg.NodeName), DNSNames: slices.Clone(names), IPAddresses: slices.Clone(ips),
			},
		}
	}
	k, err := newKeeper(cfg, servingPair, servingFailures, wanted(ips))
	if err != nil {
		return nil, err
	}
	k.remake = func(ips []net.IP) (certificate.Manager, error) { return k.newManager(cfg, servingPair, wanted(ips)) }
	return k, nil
}

func subject(node string) pkix.Name {
	return pkix.Name{CommonName: nodeUserPrefix + node, Organization: []string{nodesGroup}}
}

func newKeeper(cfg Config, pair, failures string, manager certificate.Config) (*Keeper, error) {
	if cfg.NodeName == "" {
		return nil, errors.New("keep a node's certificate: Config.NodeName is empty")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep certificates of node %s: %w", cfg.NodeName, err)
	}
	k := &Keeper{
		clock: cfg.Clock, got: make(chan struct{}), moved: make(chan struct{}, 1),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: failures, Help: "Failed tries to have the certificate signed."}),
	}
	if k.clock == nil {
		k.clock = clock.RealClock{}
	}
	made, err := k.newManager(cfg, pair, manager)
	if err != nil {
		return nil, err
	}
	k.manager = made
	k.current.Store(made.Current())
	return k, nil
}

// newManager makes what asks for a certificate, and stores it where the one of before is.
func (k *Keeper) newManager(cfg Config, pair string, manager certificate.Config) (certificate.Manager, error) {
	store, err := certificate.NewFileStore(pair, cfg.Dir, cfg.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("keep certificates of node %s in %s: %w", cfg.NodeName, cfg.Dir, err)
	}
	if k.path == nil { // it is the same for each
		k.path = store.CurrentPath
	}
	k.mu.Lock()
	k.made++
	number := k.made
	k.mu.Unlock()
	manager.CertificateStore = announced{store, k.renewed, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return number == k.made
	}}
	manager.CertificateRenewFailure = k.failures
	if cfg.Lifetime > 0 {
		manager.RequestedCertificateLifetime = &cfg.Lifetime
	}
	made, err := certificate.NewManager(&manager)
	if err != nil {
		return nil, fmt.Errorf("keep certificates of node %s in %s: %w", cfg.NodeName, cfg.Dir, err)
	}
	return made, nil
}

// Start asks for a certificate when there is none or it is time to, until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	var runs certificate.Manager
	for ctx.Err() == nil {
		k.mu.Lock()
		newest := k.manager
		k.mu.Unlock()
		if newest != runs {
			if runs != nil {
				runs.Stop()
			}
			runs = newest
			runs.Start()
		}
		select {
		case <-ctx.Done():
		case <-k.moved:
		}
	}
	if runs != nil {
		runs.Stop()
	}
	return nil
}

// SetIPs has a serving certificate asked for that is for these addresses. The one of before is served until it is there.
func (k *Keeper) SetIPs(ips []net.IP) error {
	if k.remake == nil {
		return errors.New("change the addresses of a certificate: it is a client's, and has none")
	}
	made, err := k.remake(ips)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.manager = made
	k.mu.Unlock()
	select {
	case k.moved <- struct{}{}:
	default:
	}
	return nil
}

// Current is the certificate of now, nil if there is none that is valid.
func (k *Keeper) Current() *tls.Certificate {
	current := k.current.Load()
	if current == nil || current.Leaf == nil || k.clock.Now().After(current.Leaf.NotAfter) {
		return nil
	}
	return current
}

// Metrics counts the tries to have the certificate signed that failed, under upstream's name for such a certificate.
func (k *Keeper) Metrics() prometheus.Collector { return k.failures }

// Path is the file that holds the current certificate and its key, in PEM form; it is replaced by each renewal.
func (k *Keeper) Path() string { return k.path() }

// Wait returns the current certificate as soon as there is one, or the error of ctx.
func (k *Keeper) Wait(ctx context.Context) (*tls.Certificate, error) {
	for {
		k.mu.Lock()
		got := k.got
		k.mu.Unlock()
		if current := k.Current(); current != nil {
			return current, nil
		}
		select {
		case <-got:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a certificate in %s: %w", k.Path(), context.Cause(ctx))
		}
	}
}

// OnRenewal calls fn after each renewal, from the goroutine that renews: fn must not block.
func (k *Keeper) OnRenewal(fn func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changed = append(k.changed, fn)
}

func (k *Keeper) renewed(pair *tls.Certificate) {
	k.mu.Lock()
	k.current.Store(pair) // with mu held: who saw it, and then asks to be told of renewals, is not told of this one
	changed := slices.Clone(k.changed)
	close(k.got)
	k.got = make(chan struct{})
	k.mu.Unlock()
	for _, fn := range changed {
		fn()
	}
}
