package network

import (
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of a resolver configuration. What exceeds them is omitted with a warning.
const (
	maxNameservers    = 3
	maxSearchDomains  = 32
	maxSearchListSize = 2048 // characters, including the blanks between the domains
)

const (
	// ReasonMissingClusterDNS is the event reason for a Pod that uses the cluster's DNS when none is configured.
	ReasonMissingClusterDNS = "MissingClusterDNS"
	// ReasonDNSConfigForming is the event reason for a Pod whose resolver configuration exceeded a limit.
	ReasonDNSConfigForming = "DNSConfigForming"
)

// Warning is the content of an event of type Warning on the Pod.
type Warning struct {
	Reason  string
	Message string
}

// DNS computes the resolver configuration of Pods. Its methods do not modify it, so it is safe for concurrent use.
type DNS struct {
	// ClusterDNS are the addresses of the cluster's name servers; without any, Pods get the node's configuration.
	ClusterDNS []string
	// ClusterDomain is the domain of all Services, usually "cluster.local". If empty, there are no cluster search
	// domains.
	ClusterDomain string
	// ResolvConf is the path of the node's resolver file. If empty, Pods inherit nothing from the node.
	ResolvConf string
}

// ForPod returns the content of the Pod's resolver file. It returns an error if the node's file cannot be read or the
// policy is invalid.
func (d *DNS) ForPod(pod *corev1.Pod) (*runtimeapi.DNSConfig, []Warning, error) {
	policy, warnings, err := d.policy(pod)
	if err != nil {
		return nil, nil, err
	}
	config := &runtimeapi.DNSConfig{}
	if policy != corev1.DNSNone {
		node, err := d.nodeConfig()
		if err != nil {
			return nil, nil, err
		}
		switch {
		case policy == corev1.DNSClusterFirst:
			config = d.clusterFirst(pod, node)
		case d.ResolvConf == "":
			// The runtime replaces an empty configuration by the node's; this one resolves nothing.
			config = &runtimeapi.DNSConfig{Servers: []string{"127.0.0.1"}, Searches: []string{"."}}
		default:
			config = node
		}
	}
	if pod.Spec.DNSConfig != nil {
		merge(config, pod.Spec.DNSConfig)
	}
	return config, append(warnings, applyLimits(config)...), nil
}

// policy resolves the Pod's dnsPolicy to ClusterFirst, Default or None.
func (d *DNS) policy(pod *corev1.Pod) (corev1.DNSPolicy, []Warning, error) {
	switch pod.Spec.DNSPolicy {
	case corev1.DNSNone, corev1.DNSDefault:
		return pod.Spec.DNSPolicy, nil, nil
	case corev1.DNSClusterFirst, "":
		if pod.Spec.HostNetwork {
			return corev1.DNSDefault, nil, nil
		}
	case corev1.DNSClusterFirstWithHostNet:
	default:
		return "", nil, fmt.Errorf("read spec.dnsPolicy %q: not a DNS policy", pod.Spec.DNSPolicy)
	}
	if len(d.ClusterDNS) == 0 {
		return corev1.DNSDefault, []Warning{{ReasonMissingClusterDNS, fmt.Sprintf("pod: %q. kubelet does not have "+
			"ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
			pod.Name+"_"+pod.Namespace+"("+string(pod.UID)+")", corev1.DNSClusterFirst, corev1.DNSDefault)}}, nil
	}
	return corev1.DNSClusterFirst, nil, nil
}

// clusterFirst returns the cluster's name servers, with the cluster's search domains before the node's.
func (d *DNS) clusterFirst(pod *corev1.Pod, node *runtimeapi.DNSConfig) *runtimeapi.DNSConfig {
	return &runtimeapi.DNSConfig{
		Servers:  slices.Clone(d.ClusterDNS),
		Searches: unique(append(d.clusterSearches(pod.Namespace), node.Searches...)),
		Options:  []string{"ndots:5"},
	}
}

// clusterSearches returns the cluster's search domains for the Pods of a namespace.
func (d *DNS) clusterSearches(namespace string) []string {
	if d.ClusterDomain == "" {
		return nil
	}
	services := "svc." + d.ClusterDomain
	return []string{namespace + "." + services, services, d.ClusterDomain}
}

// nodeConfig reads the node's resolver configuration.
func (d *DNS) nodeConfig() (*runtimeapi.DNSConfig, error) {
	if d.ResolvConf == "" {
		return &runtimeapi.DNSConfig{}, nil
	}
	content, err := os.ReadFile(d.ResolvConf)
	if err != nil {
		return nil, fmt.Errorf("read the node's resolver file %q: %w", d.ResolvConf, err)
	}
	return ParseResolvConf(content), nil
}

// CheckNode returns an error if the node's resolver configuration cannot be read, or has more search domains than Pods can have beside
// those of the cluster: theirs are cut then.
func (d *DNS) CheckNode() error {
	node, err := d.nodeConfig()
	if err != nil {
		return err
	}
	most := maxSearchDomains - len(d.clusterSearches(""))
	switch {
	case len(node.Searches) > most:
		return fmt.Errorf("resolver file %q has %d search domains: a Pod can have %d of them", d.ResolvConf, len(node.Searches), most)
	case len(fittingSearches(node.Searches)) < len(node.Searches):
		return fmt.Errorf("resolver file %q has a search domain of more than %d characters, or more than %d characters of them",
			d.ResolvConf, validation.DNS1123SubdomainMaxLength, maxSearchListSize)
	}
	return nil
}

// ParseResolvConf parses a resolver file as resolv.conf(5) describes it: every nameserver, the last search list, and of every option
// the last. Unknown lines are ignored, as resolvers do. So is the search domain ".", which systemd-resolved writes when there is no
// other: it has no meaning beside the cluster's domains, and some resolvers, such as that of musl, fail because of it.
func ParseResolvConf(content []byte) *runtimeapi.DNSConfig {
	config := &runtimeapi.DNSConfig{}
	for line := range strings.Lines(string(content)) {
		line, _, _ = strings.Cut(line, "#")
		line, _, _ = strings.Cut(line, ";")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) > 1 {
				config.Servers = append(config.Servers, fields[1])
			}
		case "search":
			config.Searches = nil
			for _, domain := range fields[1:] {
				if domain = strings.TrimRight(domain, "."); domain != "" {
					config.Searches = append(config.Searches, domain)
				}
			}
		case "options":
			for _, option := range fields[1:] {
				setOption(config, option)
			}
		}
	}
	return config
}

// merge adds the Pod's dnsConfig; an option of the Pod replaces the same one of the configuration.
func merge(config *runtimeapi.DNSConfig, own *corev1.PodDNSConfig) {
	config.Servers = unique(append(config.Servers, own.Nameservers...))
	config.Searches = unique(append(config.Searches, own.Searches...))
	for _, option := range own.Options {
		entry := option.Name
		if option.Value != nil && *option.Value != "" {
			entry += ":" + *option.Value
		}
		setOption(config, entry)
	}
}

// setOption adds an option, NAME or NAME:VALUE, in place of one of the same name.
func setOption(config *runtimeapi.DNSConfig, option string) {
	name, _, _ := strings.Cut(option, ":")
	at := slices.IndexFunc(config.Options, func(have string) bool {
		before, _, _ := strings.Cut(have, ":")
		return before == name
	})
	if at < 0 {
		config.Options = append(config.Options, option)
	} else {
		config.Options[at] = option
	}
}

// applyLimits truncates the configuration to the limits of resolvers.
func applyLimits(config *runtimeapi.DNSConfig) []Warning {
	var warnings []Warning
	if len(config.Servers) > maxNameservers {
		config.Servers = config.Servers[:maxNameservers]
		warnings = append(warnings, Warning{ReasonDNSConfigForming, "Nameserver limits were exceeded, some nameservers " +
			"have been omitted, the applied nameserver line is: " + strings.Join(config.Servers, " ")})
	}
	if kept := fittingSearches(config.Searches); len(kept) < len(config.Searches) {
		config.Searches = kept
		warnings = append(warnings, Warning{ReasonDNSConfigForming, "Search Line limits were exceeded, some search " +
			"paths have been omitted, the applied search line is: " + strings.Join(config.Searches, " ")})
	}
	return warnings
}

// fittingSearches returns the search domains that resolvers accept: the first ones, without those that are longer than a name can be.
// Some resolvers end the program when they meet such a domain.
func fittingSearches(domains []string) []string {
	kept, size := make([]string, 0, len(domains)), -1
	for _, domain := range domains[:min(len(domains), maxSearchDomains)] {
		if len(domain) > validation.DNS1123SubdomainMaxLength {
			continue
		}
		if size += len(domain) + 1; size > maxSearchListSize {
			break
		}
		kept = append(kept, domain)
	}
	return kept
}

// unique removes later duplicates.
func unique(names []string) []string {
	seen := make(map[string]bool, len(names))
	kept := make([]string, 0, len(names))
	for _, entry := range names {
		if !seen[entry] {
			seen[entry] = true
			kept = append(kept, entry)
		}
	}
	return kept
}
