package csrapproval

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	nodePrefix = "system:node:"
	nodesGroup = "system:nodes"
	// proxyUser is the only client identity that a node gets in addition to its own.
	proxyUser = "system:kube-proxy"
)

// requester returns the name of the node that submitted the request; ok is false if none did.
func requester(request *certificatesv1.CertificateSigningRequest) (node string, ok bool) {
	node, ok = strings.CutPrefix(request.Spec.Username, nodePrefix)
	return node, ok && node != "" && slices.Contains(request.Spec.Groups, nodesGroup)
}

// isPending reports whether the request is one that this package may approve and that is not decided.
func isPending(request *certificatesv1.CertificateSigningRequest) bool {
	if len(request.Status.Certificate) > 0 || len(request.Status.Conditions) > 0 {
		return false
	}
	_, ok := requester(request)
	return ok && slices.Contains([]string{
		certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientSignerName,
	}, request.Spec.SignerName)
}

// check returns nil if the request of the node may be approved. others are all other Nodes, services the networks of Services. The error is
// the reason why not, which may change with the Nodes.
func check(request *certificatesv1.CertificateSigningRequest, node *corev1.Node, others []*corev1.Node, services []netip.Prefix) error {
	block, rest := pem.Decode(request.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return errors.New("it is not one PEM block CERTIFICATE REQUEST")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("it cannot be parsed: %w", err)
	}
	if len(csr.EmailAddresses) > 0 || len(csr.URIs) > 0 {
		return errors.New("it names email addresses or URIs")
	}
	if request.Spec.SignerName == certificatesv1.KubeAPIServerClientSignerName {
		return checkProxy(request, csr)
	}
	return checkServing(request, csr, node, others, services)
}

func checkProxy(request *certificatesv1.CertificateSigningRequest, csr *x509.CertificateRequest) error {
	if csr.Subject.CommonName != proxyUser || len(csr.Subject.Organization) > 0 {
		return fmt.Errorf("it is for %s, and a node gets a client certificate for %s only", csr.Subject, proxyUser)
	}
	if len(csr.DNSNames) > 0 || len(csr.IPAddresses) > 0 {
		return errors.New("a client certificate has no names or addresses")
	}
	return checkUsages(request, certificatesv1.UsageClientAuth)
}

func checkServing(
	request *certificatesv1.CertificateSigningRequest, csr *x509.CertificateRequest, node *corev1.Node, others []*corev1.Node, services []netip.Prefix,
) error {
	if csr.Subject.CommonName != request.Spec.Username || !slices.Equal(csr.Subject.Organization, []string{nodesGroup}) {
		return fmt.Errorf("it is for %s, not for the node that submitted it", csr.Subject)
	}
	if len(csr.DNSNames)+len(csr.IPAddresses) == 0 {
		return errors.New("it names neither a name nor an address")
	}
	for _, name := range csr.DNSNames {
		if err := checkName(name); err != nil {
			return err
		}
		if !same(name, node.Name) && !has(node, name) {
			return fmt.Errorf("the name %s is not of node %s", name, node.Name)
		}
	}
	for _, ip := range csr.IPAddresses {
		if err := checkAddress(ip, services); err != nil {
			return err
		}
		if !has(node, ip.String()) {
			return fmt.Errorf("the address %s is not of node %s", ip, node.Name)
		}
	}
	// A node writes its own addresses: it must not get a certificate for those of another one.
	for _, other := range others {
		for _, name := range csr.DNSNames {
			if same(name, other.Name) || has(other, name) {
				return fmt.Errorf("the name %s is of node %s", name, other.Name)
			}
		}
		for _, ip := range csr.IPAddresses {
			if same(ip.String(), other.Name) || has(other, ip.String()) {
				return fmt.Errorf("the address %s is of node %s, too", ip, other.Name)
			}
		}
	}
	return checkUsages(request, certificatesv1.UsageServerAuth)
}

// checkUsages allows the purpose and what keys of certificates are used for in TLS.
func checkUsages(request *certificatesv1.CertificateSigningRequest, purpose certificatesv1.KeyUsage) error {
	if !slices.Contains(request.Spec.Usages, purpose) {
		return fmt.Errorf("its usages lack %q", purpose)
	}
	for _, usage := range request.Spec.Usages {
		if usage != purpose && usage != certificatesv1.UsageDigitalSignature && usage != certificatesv1.UsageKeyEncipherment {
			return fmt.Errorf("its usages have %q", usage)
		}
	}
	return nil
}

// checkName refuses names that no node has, which a node may report of itself all the same: wildcards, which stand for other nodes, too, and
// names of Services, first of all of the API server, whose certificate the same CA has signed.
func checkName(name string) error {
	labels := strings.Split(strings.ToLower(name), ".")
	if problems := validation.IsDNS1123Subdomain(strings.ToLower(name)); len(problems) > 0 {
		return fmt.Errorf("the name %q is not that of a machine: %s", name, problems[0])
	}
	if labels[0] == "kubernetes" && (len(labels) == 1 || labels[1] == "default") || len(labels) > 2 && labels[2] == "svc" {
		return fmt.Errorf("the name %s is that of a Service", name)
	}
	return nil
}

// checkAddress refuses addresses that no node has alone, which a node may report of itself all the same: those of Services, first of all of the
// API server, and of each machine's loopback, by which its administrator reaches the API server.
func checkAddress(ip net.IP, services []netip.Prefix) error {
	address, ok := netip.AddrFromSlice(ip)
	address = address.Unmap()
	if !ok || address.IsLoopback() || address.IsUnspecified() || address.IsMulticast() {
		return fmt.Errorf("the address %s is not that of a machine", ip)
	}
	for _, network := range services {
		if network.Contains(address) {
			return fmt.Errorf("the address %s is in the network %s of Services", ip, network)
		}
	}
	return nil
}

// has reports whether the Node reports the name or address.
func has(node *corev1.Node, address string) bool {
	return slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return same(a.Address, address) })
}

// same compares names and addresses as clients of TLS do, whatever the case of their letters, and however an address is written.
func same(a, b string) bool {
	if strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, ".")) {
		return true
	}
	one, err := netip.ParseAddr(a)
	other, otherErr := netip.ParseAddr(b)
	return err == nil && otherErr == nil && one.Unmap() == other.Unmap()
}
