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
	// ServiceAccountFormer is a public key, if the private key was lost once.
	ServiceAccountFormer = "sa-former"
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

// ensureAuthority loads an authority, or creates what of it is missing or
// damaged. A certificate is made again from its key, and all that was signed with
// the key stays valid. A lost key cannot be made again: the authority is a new one.
func ensureAuthority(dir, name, commonName string, now time.Time) (*Authority, error) {
	certPath, keyPath := paths(dir, name)
	certPEM, certErr := atomicfile.Read(certPath)
	keyPEM, keyErr := atomicfile.Read(keyPath)
	if certErr == nil && keyErr == nil {
		authority, err := loadAuthority(certPEM, keyPEM, now)
		if err == nil {
			return authority, nil
		}
		certErr = err
	}
	key, err := parseKey(keyPEM)
	if err = errors.Join(unlessMissing(keyErr), err); err != nil {
		atomicfile.SetAside(keyPath, err, "the authority is a new one: copies of kubeconfigs and other nodes' certificates no longer work")
		if key, err = newKeyFile(keyPath); err != nil {
			return nil, err
		}
	}
	if !errors.Is(certErr, os.ErrNotExist) {
		if certErr == nil {
			certErr = errors.New("its key is lost")
		}
		atomicfile.SetAside(certPath, certErr, "the certificate is made again")
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
	certPEM, certErr := atomicfile.Read(certPath)
	keyPEM, keyErr := atomicfile.Read(keyPath)
	if certErr == nil && keyErr == nil {
		leaf, chained := bytes.CutSuffix(certPEM, chain)
		if chained && signer.Check(leaf, keyPEM, id, now) == nil {
			return nil
		}
	}
	if _, err := parseKey(keyPEM); unlessMissing(keyErr) != nil || keyErr == nil && err != nil {
		atomicfile.SetAside(keyPath, errors.Join(keyErr, err), "a new pair is made")
	}
	if _, err := parseCertificate(bytes.TrimSuffix(certPEM, chain)); unlessMissing(certErr) != nil || certErr == nil && err != nil {
		atomicfile.SetAside(certPath, errors.Join(certErr, err), "a new pair is made")
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
// public key is derived, so it is repaired. When the private key is lost, tokens
// in use stay valid: the API server also verifies with the former public key.
func ensureServiceAccountKeys(dir string) error {
	keyPath := filepath.Join(dir, ServiceAccount+".key")
	pubPath := filepath.Join(dir, ServiceAccount+".pub")
	formerPath := filepath.Join(dir, ServiceAccountFormer+".pub")
	have, pubErr := atomicfile.Read(pubPath)
	if pubErr == nil && !isPublicKey(have) {
		pubErr = errors.New("not a public key")
	}
	if unlessMissing(pubErr) != nil {
		atomicfile.SetAside(pubPath, pubErr, "the public key is made again from the private one")
	}
	if former, err := atomicfile.Read(formerPath); unlessMissing(err) != nil || err == nil && !isPublicKey(former) {
		atomicfile.SetAside(formerPath, errors.Join(err, errors.New("not a public key")), "tokens that the former key signed are invalid")
	}
	keyPEM, keyErr := atomicfile.Read(keyPath)
	key, err := parseKey(keyPEM)
	if err = errors.Join(unlessMissing(keyErr), err); err != nil {
		if keyErr == nil || unlessMissing(keyErr) != nil {
			atomicfile.SetAside(keyPath, err, "tokens are signed by a new key; those in use stay valid until they expire")
		}
		if key, err = newKeyFile(keyPath); err != nil {
			return err
		}
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode service-account key: %w", err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	switch {
	case pubErr == nil && string(have) == string(public):
		return nil
	case pubErr == nil: // the private key is another one
		if err := atomicfile.Write(formerPath, have); err != nil {
			return err
		}
	}
	return atomicfile.Write(pubPath, public)
}

// isPublicKey reports whether the text is a public key in PEM.
func isPublicKey(text []byte) bool {
	block, _ := pem.Decode(text)
	if block == nil {
		return false
	}
	_, err := x509.ParsePKIXPublicKey(block.Bytes)
	return err == nil
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

func unlessMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
