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
	// dialTimeout and keepAlive are client-go's own for connections to an API server.
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
	// idleTimeout closes connections that nobody uses; pingAfter and pingTimeout find those that are dead.
	idleTimeout = 90 * time.Second
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// Dial makes connections as client-go does.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext(ctx, network, address)
}

// RESTConfig is server with the keeper's certificate in place of its credentials. When the certificate is renewed the
// connections made with the old one are closed, so that none outlives it; a request that comes after the renewal makes
// a new one. Each call makes connections of its own, by the server's Dial if it has one.
func RESTConfig(server *rest.Config, manager *Manager) (*rest.Config, error) {
	config := rest.AnonymousClientConfig(server)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("speak to %s with the node's certificate: %w", server.Host, err)
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	tlsConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if current := manager.Current(); current != nil {
			return current, nil
		}
		return &tls.Certificate{}, nil // the API server then says that it knows nobody of that kind
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

// rotatingTransport sends requests by connections made with the certificate of now. Each certificate has a transport of its own:
// one that is kept finds out only later that its connections were closed, and fails requests until then.
type rotatingTransport struct {
	dial      connrotation.DialFunc
	tlsConfig *tls.Config
	current   atomic.Pointer[certTransport]
}

// certTransport is the connections made with one certificate.
type certTransport struct {
	*http.Transport
	conns *connrotation.Dialer
}

var _ http.RoundTripper = (*rotatingTransport)(nil)

// RoundTrip implements http.RoundTripper.
func (r *rotatingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	return r.current.Load().RoundTrip(request)
}

// CloseIdleConnections closes the connections that nobody uses, as http.Client has it.
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

// WriteKubeconfig writes, with mode 0600, a kubeconfig that names the server and the keeper's file, for the next start
// and for other programs.
func WriteKubeconfig(path string, server *rest.Config, manager *Manager) error {
	if server.Host == "" {
		return errors.New("write the node's kubeconfig: the server has no address")
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
