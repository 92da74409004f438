package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/certificate"
)

// serve sets the serving certificate: the configured one, one that the cluster signs, or one that the kubelet signs itself.
func (r *runner) serve(ctx context.Context, id *identity, server *agent.ServerConfig, ips []net.IP) error {
	if len(server.Addresses) == 0 {
		return nil
	}
	if r.config.ServeNodeIP {
		server.Addresses = []string{net.JoinHostPort(ips[0].String(), strconv.Itoa(int(server.Port)))}
	}
	if err := r.clientCA(id, server); err != nil {
		return err
	}
	switch {
	case r.config.Settings.Certificates.Serving:
		return r.requestServing(ctx, id, server, ips)
	case server.CertFile == "":
		return r.signServing(id, server, ips)
	}
	return nil
}

// requestServing has the cluster sign the serving certificate, and renew it.
func (r *runner) requestServing(ctx context.Context, id *identity, server *agent.ServerConfig, ips []net.IP) error {
	if r.config.standalone() {
		return errors.New("serverTLSBootstrap (--rotate-server-certificates) true: it needs an API server, and there is no --kubeconfig")
	}
	client, err := id.client()
	if err != nil {
		return err
	}
	names, all := r.certified(ips)
	manager, err := certificate.NewServing(certificate.Deps{Clientset: certificate.FixedClient(client), Logger: r.deps.Logger}, certificate.Config{
		NodeName: r.name, Dir: r.config.CertDir, DNSNames: names, IPs: all,
	})
	if err != nil {
		return err
	}
	id.metrics = append(id.metrics, manager.Metrics())
	if r.config.ExternalCloud {
		named := &cloudNames{set: manager.SetNames, start: func() { id.runManager(ctx, manager) }, logger: r.deps.Logger}
		id.onNode = named.update
	} else {
		id.runManager(ctx, manager)
		id.onAddressesChanged = func(ips []net.IP) error { return manager.SetNames(r.certified(ips)) }
	}
	server.CertFile, server.KeyFile, server.CertLater = manager.Path(), manager.Path(), true
	return nil
}

// certified returns what a serving certificate of the Node with these addresses is valid for. A name that is an IP address, as --hostname-override
// may give, is one of the addresses: clients compare an address with those alone.
func (r *runner) certified(ips []net.IP) (names []string, all []net.IP) {
	addresses := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: r.name}}
	for _, ip := range ips {
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	return certificate.NamesOf(addresses)
}

// signServing uses the certificate kubelet.crt below the directory of certificates, which any kubelet writes there, or signs one.
func (r *runner) signServing(id *identity, server *agent.ServerConfig, ips []net.IP) error {
	dir := r.config.CertDir
	server.CertFile, server.KeyFile = filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key")
	exists, err := cert.CanReadCertAndKey(server.CertFile, server.KeyFile)
	if err != nil {
		return fmt.Errorf("read the serving certificate: %w: complete the pair, or delete it", err)
	}
	if exists && !r.isOwn(server.CertFile) {
		return nil // another kubelet's, or the administrator's
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("store the serving certificate: %w", err)
	}
	id.onAddressesChanged = func(ips []net.IP) error { return r.selfSign(server.CertFile, server.KeyFile, ips) }
	return id.onAddressesChanged(ips)
}

// selfSign writes a serving certificate for these addresses and its key. One that was created before for them is used again: it
// is stored beside.
func (r *runner) selfSign(certFile, keyFile string, ips []net.IP) error {
	crt, key, err := cert.GenerateSelfSignedCertKeyWithFixtures(r.name, ips, nil, filepath.Dir(certFile))
	if err != nil {
		return fmt.Errorf("create a serving certificate: %w", err)
	}
	if err := errors.Join(atomicfile.Write(certFile, crt, 0o600), atomicfile.Write(keyFile, key, 0o600)); err != nil {
		return fmt.Errorf("store the serving certificate: %w", err)
	}
	return nil
}

// isOwn reports whether selfSign has written the certificate.
func (r *runner) isOwn(certFile string) bool {
	current, err := os.ReadFile(certFile)
	if err != nil {
		return false
	}
	stored, err := filepath.Glob(filepath.Join(filepath.Dir(certFile), r.name+"_*.crt"))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(stored, func(path string) bool {
		content, err := os.ReadFile(path)
		return err == nil && bytes.Equal(content, current)
	})
}

// clientCA uses the cluster's CA for clients, if none is configured and the command line says so.
func (r *runner) clientCA(id *identity, server *agent.ServerConfig) error {
	if server.ClientCAFile != "" || !r.config.ClusterCA || id.server == nil {
		return nil
	}
	ca := id.server.CAData
	if len(ca) == 0 {
		server.ClientCAFile = id.server.CAFile // none: clients can authenticate with tokens only
		return nil
	}
	if err := os.MkdirAll(r.config.CertDir, 0o700); err != nil {
		return fmt.Errorf("store the clients' CA: %w", err)
	}
	server.ClientCAFile = filepath.Join(r.config.CertDir, "client-ca.crt")
	if err := atomicfile.Write(server.ClientCAFile, ca, 0o600); err != nil {
		return fmt.Errorf("store the clients' CA: %w", err)
	}
	return nil
}
