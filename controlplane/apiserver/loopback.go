package apiserver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/utils/clock"
)

const (
	// loopbackLife is how long the certificate by which the server reaches itself is valid, as upstream's is. LoopbackCheck
	// fails when it has ended; a new process makes a new one.
	loopbackLife = 3 * 365 * 24 * time.Hour
	// loopbackSkew is how long before now it becomes valid, for a clock that is set back a little.
	loopbackSkew = time.Hour
	// LoopbackCheck is the name of the health check of that certificate.
	LoopbackCheck = "loopback-serving-certificate"
)

// applyLoopback lets the server reach itself by a certificate of its own. Upstream makes two keys of RSA for that, 0.1 s of each
// start before anything else, and signs each connection by one; here they are elliptic curves, which need a hundredth of it.
func applyLoopback(config *genericapiserver.Config, clock clock.PassiveClock) error {
	certificate, key, err := newLoopbackPair(clock.Now())
	if err != nil {
		return fmt.Errorf("create the certificate by which the API server reaches itself: %w", err)
	}
	const name = genericapiserver.LoopbackClientServerNameOverride
	provider, err := dynamiccertificates.NewStaticSNICertKeyContent("self-signed loopback", certificate, key, name)
	if err != nil {
		return fmt.Errorf("use the certificate by which the API server reaches itself: %w", err)
	}
	serving := config.SecureServing
	serving.SNICerts = append([]dynamiccertificates.SNICertKeyContentProvider{provider}, serving.SNICerts...) // before any of the same name
	if config.LoopbackClientConfig, err = serving.NewLoopbackClientConfig(rand.Text(), certificate); err != nil {
		return fmt.Errorf("configure how the API server reaches itself: %w", err)
	}
	end := clock.Now().Add(loopbackLife)
	check := healthz.NamedCheck(LoopbackCheck, func(*http.Request) error {
		if clock.Now().After(end) {
			return options.LoopbackCertificateExpiredError{}
		}
		return nil
	})
	config.AddHealthzChecks(check)
	config.AddLivezChecks(check)
	return nil
}

// newLoopbackPair returns a certificate that is its own authority, and its key, both in PEM.
func newLoopbackPair(now time.Time) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: genericapiserver.LoopbackClientServerNameOverride},
		DNSNames:     []string{genericapiserver.LoopbackClientServerNameOverride},
		NotBefore:    now.Add(-loopbackSkew), NotAfter: now.Add(loopbackLife),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return encodePEM("CERTIFICATE", der), encodePEM("EC PRIVATE KEY", keyDER), nil
}

func encodePEM(kind string, der []byte) []byte {
	var out bytes.Buffer
	_ = pem.Encode(&out, &pem.Block{Type: kind, Bytes: der}) // a buffer has no error
	return out.Bytes()
}
