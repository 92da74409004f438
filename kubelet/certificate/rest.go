package certificate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/connrotation"

	"github.com/berth-dev/berth/internal/atomicfile"
)

const (
	// dialTimeout and keepAlive are the values of client-go for connections to an API server.
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
	// idleTimeout closes unused connections; pingAfter and pingTimeout detect dead ones.
	idleTimeout = 90 * time.Second
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// Dial opens a connection with the timeouts of client-go.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext(ctx, network, address)
}

// RESTConfig returns a copy of server that authenticates with the manager's certificate in place of its own credentials.
// When the certificate is renewed, connections that use the old one are closed, and later requests open new ones. Each
// call has its own connections; they are opened with server.Dial if that is set.
func RESTConfig(server *rest.Config, manager *Manager) (*rest.Config, error) {
	config := rest.AnonymousClientConfig(server)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("configure TLS for %s: %w", server.Host, err)
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	tlsConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if current := manager.Current(); current != nil {
			return current, nil
		}
		return &tls.Certificate{}, nil // the API server then rejects the request as unauthenticated
	}
	dial := server.Dial
	if dial == nil {
		dial = Dial
	}
	transport := &rotatingTransport{dial: dial, tlsConfig: tlsConfig}
	transport.current.Store(transport.newTransport())
	manager.OnRenewal(transport.rotate)
	config.Transport, config.TLSClientConfig, config.Dial = transport, rest.TLSClientConfig{}, nil
	return config, nil
}

// rotatingTransport sends requests over connections that use the current certificate. Each certificate has its own
// http.Transport: a reused one would notice only later that its connections were closed, and fail requests until then.
type rotatingTransport struct {
	dial      connrotation.DialFunc
	tlsConfig *tls.Config
	current   atomic.Pointer[certTransport]
}

// certTransport has the connections that use one certificate.
type certTransport struct {
	*http.Transport
	conns *connrotation.Dialer
}

var _ http.RoundTripper = (*rotatingTransport)(nil)

// RoundTrip implements http.RoundTripper.
func (r *rotatingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	return r.current.Load().RoundTrip(request)
}

// CloseIdleConnections closes unused connections. http.Client calls it by this name.
func (r *rotatingTransport) CloseIdleConnections() { r.current.Load().CloseIdleConnections() }

func (r *rotatingTransport) rotate() { r.current.Swap(r.newTransport()).conns.CloseAll() }

func (r *rotatingTransport) newTransport() *certTransport {
	conns := connrotation.NewDialer(r.dial)
	return &certTransport{conns: conns, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: r.tlsConfig.Clone(), TLSHandshakeTimeout: dialTimeout,
		DialContext: conns.DialContext, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: 25,
		ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}}
}

// WriteKubeconfig writes a kubeconfig, with mode 0600, that refers to the server and the manager's certificate file, for
// the next start and for other programs.
func WriteKubeconfig(path string, server *rest.Config, manager *Manager) error {
	if server.Host == "" {
		return errors.New("write the node's kubeconfig: the server address is empty")
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["default"] = &clientcmdapi.Cluster{
		Server: server.Host, CertificateAuthority: server.CAFile, CertificateAuthorityData: server.CAData,
		InsecureSkipTLSVerify: server.Insecure, TLSServerName: server.ServerName,
	}
	config.AuthInfos["default"] = &clientcmdapi.AuthInfo{ClientCertificate: manager.Path(), ClientKey: manager.Path()}
	config.Contexts["default"] = &clientcmdapi.Context{Cluster: "default", AuthInfo: "default"}
	config.CurrentContext = "default"
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("write the node's kubeconfig: %w", err)
	}
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("write the node's kubeconfig: %w", err)
	}
	return nil
}
