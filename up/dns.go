package up

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/up/supervisor"
)

const (
	// dnsName is the name of the component that resolves names of Services.
	dnsName = "dns"
	dnsPort = 53
	// dnsServiceName is the name under which programs and charts expect the cluster's DNS, in kube-system.
	dnsServiceName = "kube-dns"
	// dnsSliceName and dnsSliceName6 are the names of the EndpointSlices with Berth's DNS, of IPv4 and IPv6.
	dnsSliceName  = dnsServiceName + "-berth"
	dnsSliceName6 = dnsSliceName + "-ipv6"
	// dnsServiceIndex is the place of its address in the range of Service addresses, by convention.
	dnsServiceIndex = 10
	// clusterDomain is the domain of all Services.
	clusterDomain = "cluster.local"
)

// The parts of the configuration of CoreDNS by which [Layout.Resolvers] reads it.
const (
	resolversComment = "# Names of the outside are resolved by the name servers of "
	forwardPrefix    = "    forward . "
)

// corefile returns the configuration of CoreDNS. Names of the cluster are resolved from the informers' caches, never from a
// cache of responses, so that no response outlives its cause. Of names of the outside, a response is cached for as long as
// it says itself, one that there is no such name for 5 s at most, and a failure not at all.
func (l Layout) corefile(forwarders []string) string {
	config := fmt.Sprintf(`%s%s
.:%d {
    bind %s
    errors
    metrics_socket %[7]s
    cache {
        success 9984 3600 0
        denial 9984 5 0
        servfail 0s
        disable success %[5]s
        disable denial %[5]s
    }
    kubernetes %[5]s in-addr.arpa ip6.arpa {
        kubeconfig %[6]s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }
`, resolversComment, l.resolverFiles().Main, dnsPort, joinAddresses(l.gateways()), clusterDomain,
		quoteForCorefile(l.Kubeconfig(dnsName)), quoteForCorefile(l.dnsMetricsSocket()))
	if len(forwarders) > 0 {
		config += fmt.Sprintf("    loop\n"+forwardPrefix+"%s {\n        policy sequential\n    }\n", strings.Join(forwarders, " "))
	}
	return config + "    loadbalance\n}\n"
}

// quoteForCorefile returns a path as one token of a Corefile, which a space would end; nothing but quotation marks is escaped there.
func quoteForCorefile(path string) string { return `"` + strings.ReplaceAll(path, `"`, `\"`) + `"` }

// corefilePath is the path of the configuration of CoreDNS.
func (l Layout) corefilePath() string { return filepath.Join(l.RunDir, "Corefile") }

// dnsMetricsSocket is the path of the socket on which CoreDNS serves its metrics; the API server reads them there.
func (l Layout) dnsMetricsSocket() string { return filepath.Join(l.RunDir, "dns-metrics.sock") }

// writeCorefile writes the configuration of CoreDNS if it has changed. Servers of the machine that lead back to the cluster's
// DNS are left out until the machine has others.
func (c *Cluster) writeCorefile() (changed bool, err error) {
	forwarders, err := c.forwarders()
	if err != nil {
		return false, err
	}
	if loop := c.dnsLoop.Load(); loop != nil && slices.Equal(*loop, forwarders) {
		forwarders = nil
	}
	return replaceFile(c.corefilePath(), []byte(c.corefile(forwarders)), 0o600)
}

// Resolvers returns the name servers to which the cluster's DNS forwards names of the outside, and the file that names them, as
// the configuration of CoreDNS has them.
func (l Layout) Resolvers() (servers []string, file string, err error) {
	data, err := os.ReadFile(l.corefilePath())
	if err != nil {
		return nil, "", fmt.Errorf("read the configuration of the cluster's DNS: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		if path, ok := strings.CutPrefix(line, resolversComment); ok {
			file = path
		}
		if list, ok := strings.CutPrefix(line, forwardPrefix); ok {
			servers = strings.Fields(strings.TrimSuffix(list, "{"))
		}
	}
	return servers, file, nil
}

// newDNS returns the component that runs CoreDNS.
func (c *Cluster) newDNS() (runFunc, error) {
	if _, err := c.writeCorefile(); err != nil {
		return nil, err
	}
	if c.adopted(dnsName) {
		c.servicesReady[dnsName].set(nil)
	}
	run := c.program(supervisor.Program{
		Name: dnsName, Argv: []string{c.Program("berth-dns"), "-conf", c.corefilePath()}, Health: c.dnsHealth(),
	})
	return c.withReadiness(dnsName, dnsReady(c.Gateway), func(ctx context.Context) error {
		err := run(ctx)
		if isLoop(err) {
			forwarders, readErr := c.forwarders()
			if readErr == nil {
				c.dnsLoop.Store(&forwarders)
			}
			err = fmt.Errorf("the name servers of %s (%s) lead back to the cluster's own DNS, so names of the outside do not resolve until "+
				"that file names others: %w", c.resolverFiles().Main, strings.Join(forwarders, ", "), err)
		}
		return err
	}), nil
}

// dnsHealth sends the DNS server a query for a name of the cluster that does not exist: it replies without asking another server.
func (l Layout) dnsHealth() *supervisor.Health {
	query := []byte{
		0xbe, 0x27, 0, 0, // identifier, flags: a plain query
		0, 1, 0, 0, 0, 0, 0, 0, // one question, nothing else
		6, 'h', 'e', 'a', 'l', 't', 'h', 7, 'c', 'l', 'u', 's', 't', 'e', 'r', 5, 'l', 'o', 'c', 'a', 'l', 0,
		0, 1, 0, 1, // type A, class IN
	}
	return &supervisor.Health{
		Network: "udp", Address: net.JoinHostPort(l.Gateway.String(), strconv.Itoa(dnsPort)), Send: query,
		Timeout: healthTimeout, Failures: maxHealthFailures,
	}
}

// dnsObjects are the Service kube-dns at its usual address, and its endpoint: the process on the pod bridge.
func (l Layout) dnsObjects() ([]runtime.Object, error) {
	addresses, err := l.dnsServiceAddresses()
	if err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{
		Name: dnsServiceName, Namespace: metav1.NamespaceSystem,
		Labels: map[string]string{"k8s-app": dnsServiceName, "kubernetes.io/name": "CoreDNS", "kubernetes.io/cluster-service": "true"},
	}
	service := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta,
		Spec: corev1.ServiceSpec{ClusterIP: addresses[0].String(), Ports: []corev1.ServicePort{
			{Name: "dns", Port: dnsPort, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: dnsPort, Protocol: corev1.ProtocolTCP},
		}},
	}
	objects := []runtime.Object{service, l.dnsSlice(dnsSliceName, discoveryv1.AddressTypeIPv4, l.Gateway)}
	if len(addresses) > 1 {
		service.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		service.Spec.ClusterIPs = []string{addresses[0].String(), addresses[1].String()}
		objects = append(objects, l.dnsSlice(dnsSliceName6, discoveryv1.AddressTypeIPv6, l.Gateway6))
	}
	return objects, nil
}

// dnsSlice is the endpoint of the Service kube-dns for one family.
func (l Layout) dnsSlice(name string, family discoveryv1.AddressType, server netip.Addr) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem, Labels: map[string]string{
			discoveryv1.LabelServiceName: dnsServiceName, discoveryv1.LabelManagedBy: fieldManager,
		}},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{server.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			NodeName: ptr.To(l.NodeName),
		}},
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("dns"), Port: ptr.To[int32](dnsPort), Protocol: ptr.To(corev1.ProtocolUDP)},
			{Name: ptr.To("dns-tcp"), Port: ptr.To[int32](dnsPort), Protocol: ptr.To(corev1.ProtocolTCP)},
		},
	}
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
	// The slice of IPv4 goes last: it shows that the Service is Berth's.
	for _, name := range []string{dnsSliceName6, dnsSliceName} {
		if err := slices.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove EndpointSlice %s of the DNS that does not run: %w", name, err)
		}
	}
	return nil
}

// dnsServiceAddresses returns the tenth address of each range of Service addresses. The first one is of IPv4.
func (l Layout) dnsServiceAddresses() ([]netip.Addr, error) {
	services, err := parseServiceNetworks(l.ServiceCIDR)
	if err != nil {
		return nil, err
	}
	var addresses []netip.Addr
	for _, network := range services.list() {
		address := network.Addr()
		for range dnsServiceIndex {
			address = address.Next()
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}
