package join

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// infoName is the ConfigMap in kube-system by which nodes recognize a cluster of `berth up`. The control plane's RBAC names
// it, too.
const infoName = "berth-cluster"

// Keys of the ConfigMap.
const (
	keyNode          = "node"
	keyPodCIDR       = "podCIDR"
	keyServiceCIDR   = "serviceCIDR"
	keyClusterDomain = "clusterDomain"
	keyDNSService    = "dnsService"
	keyDNSServer     = "dnsServer"
	keyProxy         = "kubeProxy"
	keyLoadBalancer  = "loadBalancerCIDR"
	keyPodCIDR6      = "podCIDR6"
	keyServiceCIDR6  = "serviceCIDR6"
	keyAddress6      = "address6"
)

// Info is what a cluster of `berth up` says about itself to its nodes.
type Info struct {
	// Node is the name of the node that `berth up` runs.
	Node string
	// PodCIDR has the Pods of all nodes, ServiceCIDR the cluster addresses of Services.
	PodCIDR, ServiceCIDR netip.Prefix
	// ClusterDomain is the domain of all Services.
	ClusterDomain string
	// DNSService is the cluster address of the cluster's DNS, DNSServer the address of its process. Both are invalid in a
	// cluster without DNS.
	DNSService, DNSServer netip.Addr
	// Proxy is set if the cluster's nodes run kube-proxy.
	Proxy bool
	// LoadBalancers is the range of the addresses of Services of type LoadBalancer; invalid if they get the nodes' addresses.
	LoadBalancers netip.Prefix
	// PodCIDR6 and ServiceCIDR6 are the same of IPv6, and Address6 is an address of the machine of Node in the machines' network.
	// All are invalid in a cluster without IPv6, and Address6 also if that machine has none there.
	PodCIDR6, ServiceCIDR6 netip.Prefix
	Address6               netip.Addr
}

// PodCIDRs and ServiceCIDRs return the networks of all families, with a comma between them, as the flags of `berth up` have them.
func (i Info) PodCIDRs() string { return joinPrefixes(i.PodCIDR, i.PodCIDR6) }

// ServiceCIDRs is explained at PodCIDRs.
func (i Info) ServiceCIDRs() string { return joinPrefixes(i.ServiceCIDR, i.ServiceCIDR6) }

func joinPrefixes(v4, v6 netip.Prefix) string {
	if !v6.IsValid() {
		return v4.String()
	}
	return v4.String() + "," + v6.String()
}

// ConfigMap returns the object that publishes the Info.
func (i Info) ConfigMap() *corev1.ConfigMap {
	data := map[string]string{
		keyNode: i.Node, keyPodCIDR: i.PodCIDR.String(), keyServiceCIDR: i.ServiceCIDR.String(),
		keyClusterDomain: i.ClusterDomain, keyProxy: strconv.FormatBool(i.Proxy),
	}
	for key, address := range map[string]netip.Addr{keyDNSService: i.DNSService, keyDNSServer: i.DNSServer, keyAddress6: i.Address6} {
		if address.IsValid() {
			data[key] = address.String()
		}
	}
	for key, network := range map[string]netip.Prefix{
		keyLoadBalancer: i.LoadBalancers, keyPodCIDR6: i.PodCIDR6, keyServiceCIDR6: i.ServiceCIDR6,
	} {
		if network.IsValid() {
			data[key] = network.String()
		}
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: infoName, Namespace: metav1.NamespaceSystem},
		Data:       data,
	}
}

// ReadInfo reads what the cluster says about itself. ok is false if it is not a cluster of `berth up`.
func ReadInfo(ctx context.Context, client kubernetes.Interface) (info Info, ok bool, err error) {
	object, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, infoName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // other clusters do not let nodes read this
		return Info{}, false, nil
	}
	if err != nil {
		return Info{}, false, fmt.Errorf("find out whether this is a cluster of berth up: %w", err)
	}
	if info, err = parseInfo(object.Data); err != nil {
		return Info{}, false, fmt.Errorf("read ConfigMap %s/%s: %w: restart berth up, which writes it again",
			metav1.NamespaceSystem, infoName, err)
	}
	return info, true, nil
}

func parseInfo(data map[string]string) (Info, error) {
	info := Info{Node: data[keyNode], ClusterDomain: data[keyClusterDomain]}
	var errs []error
	prefix := func(key string, into *netip.Prefix) {
		var err error
		if *into, err = netip.ParsePrefix(data[key]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	prefix(keyPodCIDR, &info.PodCIDR)
	prefix(keyServiceCIDR, &info.ServiceCIDR)
	for key, into := range map[string]*netip.Prefix{
		keyLoadBalancer: &info.LoadBalancers, keyPodCIDR6: &info.PodCIDR6, keyServiceCIDR6: &info.ServiceCIDR6,
	} {
		if data[key] != "" {
			prefix(key, into)
		}
	}
	for key, into := range map[string]*netip.Addr{keyDNSService: &info.DNSService, keyDNSServer: &info.DNSServer, keyAddress6: &info.Address6} {
		if data[key] == "" {
			continue
		}
		var err error
		if *into, err = netip.ParseAddr(data[key]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	var err error
	if info.Proxy, err = strconv.ParseBool(data[keyProxy]); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", keyProxy, err))
	}
	if info.Node == "" || info.ClusterDomain == "" {
		errs = append(errs, fmt.Errorf("%s and %s are required", keyNode, keyClusterDomain))
	}
	return info, errors.Join(errs...)
}
