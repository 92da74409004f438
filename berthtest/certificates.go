package berthtest

import (
	"crypto"
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
	"os"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// certificateLife is how long certificates for a test are valid, clockSkew how long before now they are.
const (
	certificateLife = 7 * 24 * time.Hour
	clockSkew       = time.Hour
)

// servingCertificate makes a certificate that signs itself, for a server with the names and addresses. Empty ones are skipped.
func servingCertificate(names ...string) (certPEM, keyPEM []byte, err error) {
	wanted, err := newTemplate(pkix.Name{CommonName: "berthtest-webhooks"}, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, nil, err
	}
	wanted.IsCA, wanted.BasicConstraintsValid = true, true
	wanted.KeyUsage |= x509.KeyUsageCertSign
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			wanted.IPAddresses = append(wanted.IPAddresses, ip)
		} else if name != "" {
			wanted.DNSNames = append(wanted.DNSNames, name)
		}
	}
	return issue(wanted, wanted, nil)
}

// clientCertificate makes a certificate for a user, which the authority in the files signs.
func clientCertificate(caCert, caKey string, user User) (certPEM, keyPEM []byte, err error) {
	authorities, err := cert.CertsFromFile(caCert)
	if err != nil {
		return nil, nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	data, err := os.ReadFile(caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("read the key of the cluster's authority: %w", err)
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read the key of the cluster's authority: %w", err)
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, nil, errors.New("the key of the cluster's authority cannot sign")
	}
	wanted, err := newTemplate(pkix.Name{CommonName: user.Name, Organization: user.Groups}, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, nil, err
	}
	return issue(wanted, authorities[0], signer)
}

// newTemplate returns what certificates for tests have in common.
func newTemplate(subject pkix.Name, usage x509.ExtKeyUsage) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, nil
}

// issue makes a key and a certificate for it, which the signer signs as parent; without a signer the certificate signs itself.
func issue(wanted, parent *x509.Certificate, signer crypto.Signer) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, wanted, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate: %w", err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, fmt.Errorf("encode the key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), keyPEM, nil
}
