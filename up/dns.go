package up

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/atomicfile"
)

const (
	// dnsName is the name of the component that resolves names of Services.
	dnsName = "dns"
	dnsPort = 53
	// dnsServiceName is the name under which programs and charts expect the cluster's DNS, in kube-system.
	dnsServiceName = "kube-dns"
	// dnsSliceName is the name of the EndpointSlice with Berth's DNS.
	dnsSliceName = dnsServiceName + "-berth"
	// dnsServiceIndex is the place of its address in the range of Service addresses, by convention.
	dnsServiceIndex = 10
	// clusterDomain is the domain of all Services.
	clusterDomain = "cluster.local"
)

// corefile is CoreDNS' configuration. Names of the cluster are answered from the informers' caches, never from a cache of
// answers, so that no answer outlives its cause.
func (l Layout) corefile(resolvConf string) string {
	config := fmt.Sprintf(`.:%d {
    bind %s
    errors
    cache {
        disable success %[3]s
        disable denial %[3]s
        denial 9984 5
    }
    kubernetes %[3]s in-addr.arpa ip6.arpa {
        kubeconfig %[4]s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }
`, dnsPort, l.Gateway, clusterDomain, l.Kubeconfig(dnsName))
	if hasNameserver(resolvConf) {
		config += fmt.Sprintf("    forward . %s\n", resolvConf)
	}
	return config + "    loadbalance\n}\n"
}

// hasNameserver reports whether the file names a server to forward to. CoreDNS does not start with one that names none.
func hasNameserver(resolvConf string) bool { return len(nameservers(resolvConf)) > 0 }

// newDNS returns the component that runs CoreDNS.
func (c *Cluster) newDNS() (runFunc, error) {
	file := filepath.Join(c.RunDir, "Corefile")
	if err := atomicfile.WriteVolatile(file, []byte(c.corefile("/etc/resolv.conf")), 0o600); err != nil {
		return nil, err
	}
	return c.withReadiness(dnsName, dnsReady(c.Gateway), program{
		name: dnsName, argv: []string{c.Program("berth-dns"), "-conf", file}, logFile: c.Log(dnsName),
		pidFile: c.pidFile(dnsName),
	}.run), nil
}

// dnsObjects are the Service kube-dns at its usual address, and its endpoint: the process on the pod bridge.
func (l Layout) dnsObjects() ([]runtime.Object, error) {
	address, err := l.dnsServiceAddress()
	if err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{
		Name: dnsServiceName, Namespace: metav1.NamespaceSystem,
		Labels: map[string]string{"k8s-app": dnsServiceName, "kubernetes.io/name": "CoreDNS", "kubernetes.io/cluster-service": "true"},
	}
	service := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta,
		Spec: corev1.ServiceSpec{ClusterIP: address.String(), Ports: []corev1.ServicePort{
			{Name: "dns", Port: dnsPort, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: dnsPort, Protocol: corev1.ProtocolTCP},
		}},
	}
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: dnsSliceName, Namespace: metav1.NamespaceSystem, Labels: map[string]string{
			discoveryv1.LabelServiceName: dnsServiceName, discoveryv1.LabelManagedBy: fieldManager,
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{l.Gateway.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			NodeName: ptr.To(l.NodeName),
		}},
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("dns"), Port: ptr.To[int32](dnsPort), Protocol: ptr.To(corev1.ProtocolUDP)},
			{Name: ptr.To("dns-tcp"), Port: ptr.To[int32](dnsPort), Protocol: ptr.To(corev1.ProtocolTCP)},
		},
	}
	return []runtime.Object{service, slice}, nil
}

// removeDNSObjects removes the objects of dnsObjects, which lead to no server when the cluster runs without DNS. Those that are not
// Berth's stay.
func removeDNSObjects(ctx context.Context, client kubernetes.Interface) error {
	slices := client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	if _, err := slices.Get(ctx, dnsSliceName, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return nil // the Service, if there is one, is another's
	} else if err != nil {
		return fmt.Errorf("read EndpointSlice %s: %w", dnsSliceName, err)
	}
	services := client.CoreV1().Services(metav1.NamespaceSystem)
	service, err := services.Get(ctx, dnsServiceName, metav1.GetOptions{})
	if err == nil && len(service.Spec.Selector) == 0 { // with a selector it has other endpoints now
		err = services.Delete(ctx, dnsServiceName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &service.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove Service %s of the DNS that does not run: %w", dnsServiceName, err)
	}
	// The slice goes last: it shows that the Service is Berth's.
	if err := slices.Delete(ctx, dnsSliceName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove EndpointSlice %s of the DNS that does not run: %w", dnsSliceName, err)
	}
	return nil
}

// dnsServiceAddress returns the tenth address of the range of Service addresses.
func (l Layout) dnsServiceAddress() (netip.Addr, error) {
	prefix, err := ParseCIDR("--service-cidr", l.ServiceCIDR, 28)
	if err != nil {
		return netip.Addr{}, err
	}
	address := prefix.Addr()
	for range dnsServiceIndex {
		address = address.Next()
	}
	return address, nil
}
