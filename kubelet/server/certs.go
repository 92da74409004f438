package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// fileStamp identifies a version of a file. Comparing it costs one system call, so it is checked at every handshake
// instead of watching the file: no goroutine, no timer, and never a stale certificate.
type fileStamp struct {
	info os.FileInfo
}

func newFileStamp(path string) (fileStamp, error) {
	info, err := os.Stat(path)
	return fileStamp{info: info}, err
}

func (s fileStamp) equal(other fileStamp) bool {
	return s.info != nil && other.info != nil && os.SameFile(s.info, other.info) &&
		s.info.ModTime().Equal(other.info.ModTime()) && s.info.Size() == other.info.Size()
}

// keyPair is a serving certificate in files, which are read again when they are replaced.
type keyPair struct {
	certFile, keyFile string
	logger            *slog.Logger

	mu                  sync.Mutex // guards below
	certStamp, keyStamp fileStamp
	cert                *tls.Certificate
}

// get returns the current certificate. While new files are invalid (partly written, not matching) it returns the last
// valid certificate.
func (k *keyPair) get() (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	certStamp, certErr := newFileStamp(k.certFile)
	keyStamp, keyErr := newFileStamp(k.keyFile)
	if err := errors.Join(certErr, keyErr); err != nil {
		return k.fallBack(err)
	}
	if k.cert != nil && certStamp.equal(k.certStamp) && keyStamp.equal(k.keyStamp) {
		return k.cert, nil
	}
	cert, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	if err != nil {
		return k.fallBack(err)
	}
	k.cert, k.certStamp, k.keyStamp = &cert, certStamp, keyStamp
	return k.cert, nil
}

// fallBack returns the last valid certificate, or the error if there is none.
func (k *keyPair) fallBack(err error) (*tls.Certificate, error) {
	err = fmt.Errorf("load serving certificate %q and key %q: %w", k.certFile, k.keyFile, err)
	if k.cert == nil {
		return nil, err
	}
	k.logger.Warn("serving with the previous certificate", "error", err)
	return k.cert, nil
}

// clientCA is a CA bundle for client certificates in a file, which is read again when it is replaced.
type clientCA struct {
	file   string
	logger *slog.Logger

	mu     sync.Mutex // guards below
	stamp  fileStamp
	bundle []byte
	pool   *x509.CertPool
}

var _ dynamiccertificates.CAContentProvider = (*clientCA)(nil)

// Name implements dynamiccertificates.CAContentProvider.
func (c *clientCA) Name() string { return "client-ca::" + c.file }

// AddListener implements dynamiccertificates.CAContentProvider. There is nothing to notify: the file is checked
// whenever a certificate is verified.
func (c *clientCA) AddListener(dynamiccertificates.Listener) {}

// CurrentCABundleContent implements dynamiccertificates.CAContentProvider.
func (c *clientCA) CurrentCABundleContent() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(); err != nil {
		c.logger.Warn("verifying clients with the previous CA bundle", "error", err)
	}
	return c.bundle
}

// VerifyOptions implements dynamiccertificates.CAContentProvider; false means that no certificate can be verified.
func (c *clientCA) VerifyOptions() (x509.VerifyOptions, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(); err != nil {
		c.logger.Warn("verifying clients with the previous CA bundle", "error", err)
	}
	if c.pool == nil {
		return x509.VerifyOptions{}, false
	}
	return x509.VerifyOptions{Roots: c.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
}

// load reads the bundle for the first time.
func (c *clientCA) load() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refresh()
}

// refresh reads the bundle if it was replaced. The caller holds mu.
func (c *clientCA) refresh() error {
	fileStamp, err := newFileStamp(c.file)
	if err != nil {
		return fmt.Errorf("load client CA %q: %w", c.file, err)
	}
	if fileStamp.equal(c.stamp) {
		return nil
	}
	bundle, err := os.ReadFile(c.file)
	if err != nil {
		return fmt.Errorf("load client CA %q: %w", c.file, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return fmt.Errorf("load client CA %q: it contains no certificate in PEM form", c.file)
	}
	c.stamp, c.bundle, c.pool = fileStamp, bundle, pool
	return nil
}
