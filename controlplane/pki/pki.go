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

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/controlplane/atomicfile"
)

// Names of the pairs in the directory: NAME.crt and NAME.key. ServiceAccount is
// sa.pub and sa.key, a bare key pair.
const (
	CA               = "ca"
	FrontProxyCA     = "front-proxy-ca"
	FrontProxyClient = "front-proxy-client"
	APIServer        = "apiserver"
	KubeletServer    = "kubelet-server"
	ServiceAccount   = "sa"
	// ServiceAccountFormer is a public key, if the private key was lost once.
	ServiceAccountFormer = "sa-former"
	// APIServerKubeletClient is one file with key and certificate: its readers hold no former pair, so that both are replaced at once.
	APIServerKubeletClient = "apiserver-kubelet-client.pem"
	formerKubeletClient    = "apiserver-kubelet-client"
)

// Spec has the names and addresses of the serving certificates.
type Spec struct {
	// Addresses are the API server's: bind and advertise addresses and the
	// address of the Service default/kubernetes. Empty strings are skipped.
	Addresses []string
	// NodeName and NodeIP are the kubelet's. NodeIP may be empty.
	NodeName string
	NodeIP   string
	// Life is how long certificates are valid; 0 for DefaultLife. They are renewed when a third of it is left.
	Life time.Duration
}

// PKI are the certificates of one cluster, in a directory. Its authorities stay those that Ensure has found or made, whatever happens to
// their files.
type PKI struct {
	dir                 string
	spec                Spec
	cluster, frontProxy *Authority
}

// Ensure creates what is missing in dir. It must not run twice at the same time on one dir.
func Ensure(dir string, spec Spec, now time.Time) (*PKI, error) {
	if spec.Life == 0 {
		spec.Life = DefaultLife
	}
	if err := atomicfile.Dir(dir); err != nil {
		return nil, err
	}
	if err := atomicfile.Clean(dir); err != nil {
		return nil, err
	}
	p := &PKI{dir: dir, spec: spec}
	var err error
	if p.cluster, err = ensureAuthority(dir, CA, "berth-ca", spec.Life, now); err != nil {
		return nil, err
	}
	if p.frontProxy, err = ensureAuthority(dir, FrontProxyCA, "berth-front-proxy-ca", spec.Life, now); err != nil {
		return nil, err
	}
	if err := p.Renew(now); err != nil {
		return nil, err
	}
	return p, ensureServiceAccountKeys(dir)
}

// Cluster is the authority that signs the identities in kubeconfigs and the serving certificates.
func (p *PKI) Cluster() *Authority { return p.cluster }

// Renew replaces the certificates that end soon, are damaged, or have been lost. It must not run twice at the same time.
func (p *PKI) Renew(now time.Time) error {
	for _, own := range []struct {
		name      string
		authority **Authority
	}{{CA, &p.cluster}, {FrontProxyCA, &p.frontProxy}} {
		if err := p.renewAuthority(own.name, own.authority, now); err != nil {
			return err
		}
	}
	leaves := []struct {
		name   string
		signer *Authority
		chain  []byte
		id     Identity
	}{
		// A machine that joins knows only the hash of the authority's key: the server sends it the certificate.
		{APIServer, p.cluster, p.cluster.CertPEM(), p.spec.apiServer()},
		{KubeletServer, p.cluster, nil, p.spec.kubelet()},
		{FrontProxyClient, p.frontProxy, nil, Identity{CommonName: "front-proxy-client"}},
	}
	for _, leaf := range leaves {
		if err := ensureLeaf(p.dir, leaf.name, leaf.signer, leaf.chain, leaf.id, now); err != nil {
			return err
		}
	}
	if err := p.cluster.EnsurePair(p.KubeletClient(), Identity{CommonName: "kube-apiserver-kubelet-client"}, now); err != nil {
		return err
	}
	return removePair(p.dir, formerKubeletClient)
}

// KubeletClient is the file with the key and the certificate by which the API server is known to kubelets.
func (p *PKI) KubeletClient() string { return filepath.Join(p.dir, APIServerKubeletClient) }

// renewAuthority renews the certificate of an authority in time.
func (p *PKI) renewAuthority(name string, own **Authority, now time.Time) error {
	if !(*own).isDue(now) {
		return nil
	}
	renewed, err := (*own).renewed(now)
	if err != nil {
		return err
	}
	certPath, _ := paths(p.dir, name)
	if err := atomicfile.Write(certPath, renewed.certPEM); err != nil {
		return err
	}
	klog.InfoS("Renewed the certificate of an authority with the same key", "file", certPath, "until", renewed.cert.NotAfter,
		"formerUntil", (*own).cert.NotAfter)
	*own = renewed
	return nil
}

// removePair removes a pair that an older version has written.
func removePair(dir, name string) error {
	certPath, keyPath := paths(dir, name)
	for _, path := range []string{certPath, keyPath} {
		if err := os.Remove(path); unlessMissing(err) != nil && !isDirectory(path) {
			return fmt.Errorf("remove what an older version has written: %w", err)
		}
	}
	return nil
}

func isDirectory(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
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
func ensureAuthority(dir, name, commonName string, life time.Duration, now time.Time) (*Authority, error) {
	certPath, keyPath := paths(dir, name)
	certPEM, certErr := atomicfile.Read(certPath)
	keyPEM, keyErr := atomicfile.Read(keyPath)
	if err := errors.Join(certErr, keyErr); atomicfile.IsPassing(err) {
		return nil, fmt.Errorf("read authority %q: %w", name, err)
	}
	if certErr == nil && keyErr == nil {
		authority, err := loadAuthority(certPEM, keyPEM, life)
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
	authority, err := newAuthority(commonName, key, life, now)
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
	if err := errors.Join(certErr, keyErr); atomicfile.IsPassing(err) {
		return fmt.Errorf("read certificate %q: %w", name, err)
	}
	if certErr == nil && keyErr == nil {
		leaf, chained := bytes.CutSuffix(certPEM, chain)
		err := signer.Check(leaf, keyPEM, id, now)
		if chained && err == nil {
			return nil
		}
		klog.InfoS("Renewing a certificate", "file", certPath, "reason", err, "hasAuthority", chained)
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

// EnsurePair makes one file hold a key and a certificate for id that a has signed. A reader gets the old pair or the new one, never one of
// each.
func (a *Authority) EnsurePair(path string, id Identity, now time.Time) error {
	data, err := atomicfile.Read(path)
	if atomicfile.IsPassing(err) {
		return fmt.Errorf("read certificate and key %q: %w", path, err)
	}
	if err == nil {
		certPEM, keyPEM, splitErr := splitPair(data)
		if splitErr == nil {
			reason := a.Check(certPEM, keyPEM, id, now)
			if reason == nil {
				return nil
			}
			klog.InfoS("Renewing a certificate", "file", path, "reason", reason)
		}
		err = splitErr
	}
	if unlessMissing(err) != nil {
		atomicfile.SetAside(path, err, "a new pair is made")
	}
	certPEM, keyPEM, err := a.Issue(id, now)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(keyPEM, certPEM...))
}

// splitPair returns the two parts of what EnsurePair writes.
func splitPair(data []byte) (certPEM, keyPEM []byte, err error) {
	mark := []byte("-----BEGIN CERTIFICATE-----")
	at := bytes.Index(data, mark)
	if at < 0 {
		return nil, nil, errors.New("the file has no certificate")
	}
	certPEM, keyPEM = data[at:], data[:at]
	_, _, err = parsePair(certPEM, keyPEM)
	return certPEM, keyPEM, err
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
	former, formerErr := atomicfile.Read(formerPath)
	keyPEM, keyErr := atomicfile.Read(keyPath)
	if err := errors.Join(pubErr, formerErr, keyErr); atomicfile.IsPassing(err) {
		return fmt.Errorf("read service-account keys: %w", err)
	}
	if unlessMissing(pubErr) != nil {
		atomicfile.SetAside(pubPath, pubErr, "the public key is made again from the private one")
	}
	if unlessMissing(formerErr) != nil || formerErr == nil && !isPublicKey(former) {
		atomicfile.SetAside(formerPath, errors.Join(formerErr, errors.New("not a public key")), "tokens that the former key signed are invalid")
	}
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
