package join

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// connectTimeout bounds the connection to the API server, so that a wrong address is reported soon.
const connectTimeout = 15 * time.Second

// hashPrefix names the hash of a pin, as kubeadm's pins do.
const hashPrefix = "sha256:"

// Pin returns the hash of a CA certificate's public key, as kubeadm computes it: a machine that joins recognizes the cluster
// by it.
func Pin(ca *x509.Certificate) string {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return hashPrefix + hex.EncodeToString(sum[:])
}

// PinOf returns the Pin of a certificate in PEM form.
func PinOf(caPEM []byte) (string, error) {
	block, _ := pem.Decode(caPEM)
	if block == nil {
		return "", errors.New("read the cluster's CA: no PEM block")
	}
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("read the cluster's CA: %w", err)
	}
	return Pin(ca), nil
}

// CheckPin returns an error if the text is not a Pin.
func CheckPin(pin string) error {
	sum, ok := strings.CutPrefix(strings.ToLower(pin), hashPrefix)
	if decoded, err := hex.DecodeString(sum); !ok || err != nil || len(decoded) != sha256.Size {
		return fmt.Errorf("%q: want %s and 64 hex digits", pin, hashPrefix)
	}
	return nil
}

// ParseServer returns the URL of the API server at an address: https://HOST:PORT, where the scheme may be omitted and the
// port may be, which is then defaultPort.
func ParseServer(text, defaultPort string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	server, err := url.Parse(text)
	if err == nil && server.User != nil {
		text = server.Redacted()
	}
	if err != nil || server.Scheme != "https" || server.Hostname() == "" || strings.Trim(server.Path, "/") != "" || !onlyHost(server) {
		return nil, fmt.Errorf("%q: want the address of the API server, such as https://192.0.2.10:%s", text, defaultPort)
	}
	server = &url.URL{Scheme: server.Scheme, Host: net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), defaultPort))}
	if _, err := url.Parse(server.String()); err != nil { // as whoever reads a kubeconfig does: the zone of an IPv6 address may be anything
		return nil, fmt.Errorf("%q: the address cannot be written: %w", text, err)
	}
	return server, nil
}

// onlyHost reports whether the URL has nothing but a host and a port: a password would be written into files and messages.
func onlyHost(server *url.URL) bool {
	_, err := strconv.ParseUint(cmp.Or(server.Port(), "0"), 10, 16)
	return err == nil && server.User == nil && server.RawQuery == "" && !server.ForceQuery && server.Fragment == ""
}

// FetchCA connects to the API server and returns the CA certificate of its chain whose key has the pin, in PEM form, after
// checking that this CA has signed the server's certificate for the server's name. Nothing is sent to a server that fails.
func FetchCA(ctx context.Context, server *url.URL, pin string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var ca *x509.Certificate
	dialer := tls.Dialer{Config: &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         server.Hostname(),
		InsecureSkipVerify: true, // the CA is not known yet; VerifyConnection checks the chain against the pin
		VerifyConnection: func(state tls.ConnectionState) (err error) {
			ca, err = verifyChain(state.PeerCertificates, server.Hostname(), pin)
			return err
		},
	}}
	connection, err := dialer.DialContext(ctx, "tcp", server.Host)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server %s: %w", server, err)
	}
	_ = connection.Close() // nothing was sent
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), nil
}

// verifyChain returns the CA of the chain that has the pin, if it has signed the first certificate for host.
func verifyChain(chain []*x509.Certificate, host, pin string) (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	var ca *x509.Certificate
	for _, certificate := range chain {
		if certificate.IsCA && strings.EqualFold(Pin(certificate), pin) {
			ca = certificate
			roots.AddCert(certificate)
		}
	}
	if ca == nil {
		return nil, fmt.Errorf("no CA of the server has the hash %s: it is another cluster, or another server answers at this "+
			"address; `berth token create` on the cluster's first machine prints the hash", pin)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		DNSName: host, Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("the server's certificate: %w", err)
	}
	return ca, nil
}
