package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-dev/berth/controlplane/atomicfile"
)

// Names of the pairs in the directory: NAME.crt and NAME.key. ServiceAccount is
// sa.pub and sa.key, a bare key pair.
const (
	CA                     = "ca"
	FrontProxyCA           = "front-proxy-ca"
	FrontProxyClient       = "front-proxy-client"
	APIServer              = "apiserver"
	APIServerKubeletClient = "apiserver-kubelet-client"
	KubeletServer          = "kubelet-server"
	ServiceAccount         = "sa"
)

// Spec has the names and addresses of the serving certificates.
type Spec struct {
	// Addresses are the API server's: bind and advertise addresses and the
	// address of the Service default/kubernetes. Empty strings are skipped.
	Addresses []string
	// NodeName and NodeIP are the kubelet's. NodeIP may be empty.
	NodeName string
	NodeIP   string
}

// Ensure creates what is missing in dir and returns the cluster's authority, which
// signs the identities in kubeconfigs. It must not run twice at the same time on one
// dir.
func Ensure(dir string, spec Spec, now time.Time) (*Authority, error) {
	if err := atomicfile.Dir(dir); err != nil {
		return nil, err
	}
	if err := atomicfile.Clean(dir); err != nil {
		return nil, err
	}
	authority, err := ensureAuthority(dir, CA, "berth-ca", now)
	if err != nil {
		return nil, err
	}
	frontProxy, err := ensureAuthority(dir, FrontProxyCA, "berth-front-proxy-ca", now)
	if err != nil {
		return nil, err
	}
	leaves := []struct {
		name   string
		signer *Authority
		chain  []byte
		id     Identity
	}{
		// A machine that joins knows only the hash of the authority's key: the server sends it the certificate.
		{APIServer, authority, authority.CertPEM(), spec.apiServer()},
		{KubeletServer, authority, nil, spec.kubelet()},
		{APIServerKubeletClient, authority, nil, Identity{CommonName: "kube-apiserver-kubelet-client"}},
		{FrontProxyClient, frontProxy, nil, Identity{CommonName: "front-proxy-client"}},
	}
	for _, leaf := range leaves {
		if err := ensureLeaf(dir, leaf.name, leaf.signer, leaf.chain, leaf.id, now); err != nil {
			return nil, err
		}
	}
	if err := ensureServiceAccountKeys(dir); err != nil {
		return nil, err
	}
	return authority, nil
}

func (s Spec) apiServer() Identity {
	names := []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local", "localhost", s.NodeName,
	}
	return Identity{
		CommonName: "kube-apiserver", Server: true,
		DNSNames: dedupe(names), IPs: parseIPs(append(slices.Clone(s.Addresses), "127.0.0.1")),
	}
}

func (s Spec) kubelet() Identity {
	return Identity{
		CommonName: "system:node:" + s.NodeName, Organizations: []string{"system:nodes"}, Server: true,
		DNSNames: []string{s.NodeName}, IPs: parseIPs([]string{s.NodeIP, "127.0.0.1"}),
	}
}

// dedupe sorts names and removes duplicates and empty ones, so that the same flags
// in another order need no new certificate.
func dedupe(names []string) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
	slices.Sort(names)
	return slices.Compact(names)
}

func parseIPs(texts []string) []net.IP {
	var ips []net.IP
	for _, text := range dedupe(texts) {
		if addr, err := netip.ParseAddr(text); err == nil {
			ips = append(ips, net.IP(addr.AsSlice()))
		}
	}
	return ips
}

// ensureAuthority loads an authority, completes a partly written one, or creates it.
func ensureAuthority(dir, name, commonName string, now time.Time) (*Authority, error) {
	certPath, keyPath := paths(dir, name)
	certPEM, certErr := os.ReadFile(certPath)
	keyPEM, keyErr := os.ReadFile(keyPath)
	if err := errors.Join(unlessMissing(certErr), unlessMissing(keyErr)); err != nil {
		return nil, fmt.Errorf("read authority %q: %w", name, err)
	}
	if certErr == nil {
		if keyErr != nil {
			return nil, fmt.Errorf("authority %q is incomplete: %w: %s", name, keyErr, remedy(dir))
		}
		authority, err := loadAuthority(certPEM, keyPEM, now)
		if err != nil {
			return nil, fmt.Errorf("authority %q in %q is not usable: %w: %s", name, certPath, err, remedy(dir))
		}
		return authority, nil
	}
	// No certificate: nothing has trusted this authority yet, so a key that an
	// interrupted first start left may be used or replaced.
	key, err := parseKey(keyPEM)
	if err != nil {
		if key, err = newKeyFile(keyPath); err != nil {
			return nil, err
		}
	}
	authority, err := newAuthority(commonName, key, now)
	if err != nil {
		return nil, err
	}
	return authority, atomicfile.Write(certPath, authority.certPEM)
}

// ensureLeaf makes the file NAME.crt hold a certificate for id, followed by chain.
func ensureLeaf(dir, name string, signer *Authority, chain []byte, id Identity, now time.Time) error {
	certPath, keyPath := paths(dir, name)
	certPEM, certErr := os.ReadFile(certPath)
	keyPEM, keyErr := os.ReadFile(keyPath)
	if err := errors.Join(unlessMissing(certErr), unlessMissing(keyErr)); err != nil {
		return fmt.Errorf("read certificate %q: %w", name, err)
	}
	if certErr == nil && keyErr == nil {
		leaf, chained := bytes.CutSuffix(certPEM, chain)
		if chained && signer.Check(leaf, keyPEM, id, now) == nil {
			return nil
		}
	}
	certPEM, keyPEM, err := signer.Issue(id, now)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(keyPath, keyPEM); err != nil {
		return err
	}
	return atomicfile.Write(certPath, append(certPEM, chain...))
}

// ensureServiceAccountKeys maintains the key that signs service-account tokens. The
// public key is derived, so it is repaired; a damaged private key is not, because
// every token in use would become invalid without notice.
func ensureServiceAccountKeys(dir string) error {
	keyPath := filepath.Join(dir, ServiceAccount+".key")
	pubPath := filepath.Join(dir, ServiceAccount+".pub")
	keyPEM, err := os.ReadFile(keyPath)
	var key *ecdsa.PrivateKey
	switch {
	case errors.Is(err, os.ErrNotExist):
		if key, err = newKeyFile(keyPath); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("read service-account key: %w", err)
	default:
		if key, err = parseKey(keyPEM); err != nil {
			return fmt.Errorf("service-account key %q is not usable: %w: restore it, or remove it to make every token invalid",
				keyPath, err)
		}
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode service-account key: %w", err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if have, err := os.ReadFile(pubPath); err == nil && string(have) == string(public) {
		return nil
	}
	return atomicfile.Write(pubPath, public)
}

func newKeyFile(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create key %q: %w", path, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key %q: %w", path, err)
	}
	return key, atomicfile.Write(path, keyPEM)
}

func paths(dir, name string) (certPath, keyPath string) {
	return filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
}

func remedy(dir string) string {
	return fmt.Sprintf("restore it from a backup, or remove the directory %q to create new certificates "+
		"(copies of its kubeconfigs and tokens in use then stop working)", dir)
}

func unlessMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
