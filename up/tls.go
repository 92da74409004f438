package up

import (
	"crypto/tls"
	"time"

	"k8s.io/client-go/transport"
)

// kubeletTLS limits connections to the kubelet to TLS 1.3, and 1.2 with authenticated encryption and forward secrecy.
func kubeletTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, CipherSuites: []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}}
}

// certificateReloadVariable is the environment variable that says how often DNS and kube-proxy check whether their certificate was renewed,
// if that is more often than client-go does by itself.
const certificateReloadVariable = "BERTH_CERTIFICATE_RELOAD"

// reloadsPerLife is how often a client checks for a new certificate while one is valid; a third of that is left for a renewal.
const reloadsPerLife = 12

// minCertificateLifetime leaves a renewal some seconds.
const minCertificateLifetime = 20 * time.Second

// usualReload is client-go's own period of such checks.
const usualReload = 5 * time.Minute

// certificateReload is how often a client checks whether its certificate was renewed; 0 for client-go's own period.
func (l Layout) certificateReload() time.Duration {
	if reload := l.CertificateLifetime / reloadsPerLife; reload < usualReload {
		return reload
	}
	return 0
}

// reloadCertificates makes the clients of this process follow renewed certificates as often as the cluster's certificates need.
func (l Layout) reloadCertificates() {
	if reload := l.certificateReload(); reload != 0 {
		transport.CertCallbackRefreshDuration = reload
	}
}
