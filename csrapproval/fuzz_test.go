package csrapproval

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzServing checks the request of a node that reports arbitrary addresses of itself: a certificate that is approved is none of another node's,
// nor of the API server's.
func FuzzServing(f *testing.F) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(f, err)
	f.Add("n1", []byte{192, 0, 2, 1}, "192.0.2.1", "n2", "192.0.2.2")
	f.Add("N2", []byte(nil), "N2", "n2", "")
	f.Add("*.example", []byte(nil), "*.example", "n2.example", "")
	f.Add("kubernetes.default.svc", []byte(nil), "kubernetes.default.svc", "n2", "")
	f.Add("n1", []byte(net.ParseIP("2001:db8::1")), "2001:db8::1", "n2", "2001:DB8:0::1")
	f.Fuzz(func(t *testing.T, name string, ip []byte, address, otherName, otherAddress string) {
		csr := x509.CertificateRequest{Subject: pkix.Name{CommonName: nodePrefix + "n1", Organization: []string{nodesGroup}}, DNSNames: []string{name}}
		if len(ip) == net.IPv4len || len(ip) == net.IPv6len {
			csr.IPAddresses = []net.IP{ip}
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &csr, key)
		if err != nil || otherName == "n1" {
			return
		}
		node := func(name, address string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: address}}}}
		}
		request := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeletServingSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
			Username: nodePrefix + "n1", Groups: []string{nodesGroup}, Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		}}
		if check(request, node("n1", address), []*corev1.Node{node(otherName, otherAddress)}, services) != nil {
			return
		}
		certificate := &x509.Certificate{DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses}
		for _, host := range []string{otherName, otherAddress, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "a.b.svc.cluster.local", "127.0.0.1", "10.96.0.1"} {
			if host != "" && host[0] != '[' { // in which an address of a URL is
				require.Error(t, certificate.VerifyHostname(host), host)
			}
		}
	})
}

var services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}

// FuzzRequest checks arbitrary requests of a node: what is approved is one request for the node itself.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"), true)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(f, err)
	for _, name := range []string{proxyUser, nodePrefix + "n1"} {
		csr := x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}
		der, err := x509.CreateCertificateRequest(rand.Reader, &csr, key)
		require.NoError(f, err)
		f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, proxy bool) {
		signer, usage := certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth
		if proxy {
			signer, usage = certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageClientAuth
		}
		request := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Usages: []certificatesv1.KeyUsage{usage}, Username: nodePrefix + "n1", Groups: []string{nodesGroup}, Request: data,
		}}
		if check(request, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, nil, services) != nil {
			return
		}
		block, _ := pem.Decode(data)
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		require.NoError(t, err)
		require.Contains(t, []string{proxyUser, nodePrefix + "n1"}, csr.Subject.CommonName)
	})
}
