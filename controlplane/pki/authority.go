package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// authorityRenewBefore is when the certificate of an authority is renewed, with its key. Until the old one ends, whoever has that
	// accepts what the authority signs.
	authorityRenewBefore = 2 * 365 * 24 * time.Hour
	// DefaultLife is how long certificates are valid, and MaxLife the longest that they may be: their authority has to outlive them.
	DefaultLife = 365 * 24 * time.Hour
	MaxLife     = authorityRenewBefore
	// backdate tolerates a client whose clock is behind.
	backdate = time.Hour
)

// Identity is the content of a certificate.
type Identity struct {
	CommonName    string
	Organizations []string
	// Server: the certificate serves TLS for DNSNames and IPs. Otherwise it
	// authenticates a client.
	Server   bool
	DNSNames []string
	IPs      []net.IP
}

// Authority signs certificates. It is immutable and safe for concurrent use.
type Authority struct {
	cert    *x509.Certificate
	certPEM []byte
	key     *ecdsa.PrivateKey
	life    time.Duration // of what it signs
}

// renewBefore is how long before its end a certificate is renewed.
func (a *Authority) renewBefore() time.Duration { return a.life / 3 }

// CertPEM is the authority's certificate, which is needed to verify the
// certificates that it signs. The caller must not change it.
func (a *Authority) CertPEM() []byte { return a.certPEM }

// Certificate is the authority's certificate in DER form. The caller must not change it.
func (a *Authority) Certificate() []byte { return a.cert.Raw }

// Issue creates a key and a certificate for it, valid from now on.
func (a *Authority) Issue(id Identity, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("create key of %q: %w", id.CommonName, err)
	}
	template, err := template(pkix.Name{CommonName: id.CommonName, Organization: id.Organizations}, now, a.life)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{usage(id)}
	template.DNSNames, template.IPAddresses = id.DNSNames, id.IPs
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate of %q: %w", id.CommonName, err)
	}
	keyPEM, err = encodeKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key of %q: %w", id.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM, nil
}

// Check returns nil if the pair can still be used for id: key and certificate
// match, a has signed it, it names id, and it does not expire soon. Otherwise the
// error is the reason to issue a new pair.
func (a *Authority) Check(certPEM, keyPEM []byte, id Identity, now time.Time) error {
	cert, _, err := parsePair(certPEM, keyPEM)
	if err != nil {
		return err
	}
	if err := cert.CheckSignatureFrom(a.cert); err != nil {
		return fmt.Errorf("not signed by this cluster's authority: %w", err)
	}
	switch {
	case now.After(cert.NotAfter.Add(-a.renewBefore())):
		return fmt.Errorf("ends at %s", cert.NotAfter.Format(time.RFC3339))
	case now.Before(cert.NotBefore):
		return fmt.Errorf("starts only at %s", cert.NotBefore.Format(time.RFC3339))
	case cert.Subject.CommonName != id.CommonName || !slices.Equal(cert.Subject.Organization, id.Organizations):
		return fmt.Errorf("names another subject: %s", cert.Subject)
	case !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{usage(id)}):
		return errors.New("is for another use")
	case !sameNames(cert, id):
		return fmt.Errorf("serves other names: %v %v", cert.DNSNames, cert.IPAddresses)
	}
	return nil
}

// newAuthority creates the self-signed certificate of key. What the authority signs is valid for life.
func newAuthority(name string, key *ecdsa.PrivateKey, life time.Duration, now time.Time) (*Authority, error) {
	template, err := template(pkix.Name{CommonName: name}, now, authorityLife)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %q: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse authority %q: %w", name, err)
	}
	return &Authority{
		cert: cert, key: key, life: life, certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}

// loadAuthority parses what newAuthority has created.
func loadAuthority(certPEM, keyPEM []byte, life time.Duration) (*Authority, error) {
	cert, key, err := parsePair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	if !cert.IsCA {
		return nil, errors.New("the certificate is not an authority's")
	}
	if err := cert.CheckSignatureFrom(cert); err != nil {
		return nil, fmt.Errorf("the certificate is damaged: %w", err)
	}
	return &Authority{cert: cert, certPEM: certPEM, key: key, life: life}, nil
}

// isDue reports whether the authority's own certificate is to be renewed: it ends soon, or the clock has been set back to before its
// beginning.
func (a *Authority) isDue(now time.Time) bool {
	return now.After(a.cert.NotAfter.Add(-authorityRenewBefore)) || now.Before(a.cert.NotBefore)
}

// renewed returns the same authority with a new certificate of the same key: all that it has signed stays valid.
func (a *Authority) renewed(now time.Time) (*Authority, error) {
	return newAuthority(a.cert.Subject.CommonName, a.key, a.life, now)
}

func template(subject pkix.Name, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("create serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), // RFC 5280: positive
		Subject:      subject,
		NotBefore:    now.Add(-backdate).UTC(),
		NotAfter:     now.Add(life).UTC(),
	}, nil
}

func usage(id Identity) x509.ExtKeyUsage {
	if id.Server {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}

func sameNames(cert *x509.Certificate, id Identity) bool {
	sameIP := func(a, b net.IP) bool { return a.Equal(b) }
	return slices.Equal(cert.DNSNames, id.DNSNames) && slices.EqualFunc(cert.IPAddresses, id.IPs, sameIP)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func parseKey(keyPEM []byte) (*ecdsa.PrivateKey, error) {
	block, rest := pem.Decode(keyPEM)
	if block == nil || block.Type != "EC PRIVATE KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the key is not one PEM block EC PRIVATE KEY")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse key: %w", err)
	}
	return key, nil
}

func parseCertificate(certPEM []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(certPEM)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the certificate is not one PEM block CERTIFICATE")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse certificate: %w", err)
	}
	return cert, nil
}

func parsePair(certPEM, keyPEM []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, nil, err
	}
	cert, err := parseCertificate(certPEM)
	if err != nil {
		return nil, nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("certificate and key do not belong together")
	}
	return cert, key, nil
}
