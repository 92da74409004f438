package network

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// maxHostname is the length of the longest hostname of a Pod, in characters.
	maxHostname = validation.DNS1123LabelMaxLength
	// maxKernelHostname is the length of the longest name that sethostname(2) accepts, in characters.
	maxKernelHostname = 64
)

// Hostname returns the Pod's hostname and, if it has a subdomain, its domain (SUBDOMAIN.NAMESPACE.svc.CLUSTERDOMAIN). A
// longer hostname is truncated to 63 characters. It returns an error if the spec has no valid name.
func Hostname(pod *corev1.Pod, clusterDomain string) (hostname, domain string, err error) {
	if override := pod.Spec.HostnameOverride; override != nil {
		if errs := validation.IsDNS1123Subdomain(*override); len(errs) > 0 {
			return "", "", fmt.Errorf("read spec.hostnameOverride %q: not a valid DNS subdomain: %s",
				*override, strings.Join(errs, "; "))
		}
		name, err := truncate(*override)
		return name, "", err
	}
	name := pod.Name
	if pod.Spec.Hostname != "" {
		if errs := validation.IsDNS1123Label(pod.Spec.Hostname); len(errs) > 0 {
			return "", "", fmt.Errorf("read spec.hostname %q: not a valid DNS label: %s",
				pod.Spec.Hostname, strings.Join(errs, "; "))
		}
		name = pod.Spec.Hostname
	}
	if name, err = truncate(name); err != nil {
		return "", "", err
	}
	if pod.Spec.Subdomain != "" {
		if errs := validation.IsDNS1123Label(pod.Spec.Subdomain); len(errs) > 0 {
			return "", "", fmt.Errorf("read spec.subdomain %q: not a valid DNS label: %s",
				pod.Spec.Subdomain, strings.Join(errs, "; "))
		}
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, clusterDomain)
	}
	return name, domain, nil
}

// truncate shortens a hostname to the length of a DNS label, which does not end in "-" or ".".
func truncate(name string) (string, error) {
	if len(name) <= maxHostname {
		return name, nil
	}
	short := strings.TrimRight(name[:maxHostname], "-.")
	if short == "" {
		return "", fmt.Errorf("shorten hostname %q to %d characters: the result is empty", name, maxHostname)
	}
	return short, nil
}

// KernelHostname returns the hostname of the Pod's UTS namespace: the hostname, or the fully qualified name if
// spec.setHostnameAsFQDN is set. It returns an error if that name is too long for the kernel.
func KernelHostname(pod *corev1.Pod, hostname, domain string) (string, error) {
	if pod.Spec.SetHostnameAsFQDN == nil || !*pod.Spec.SetHostnameAsFQDN || domain == "" {
		return hostname, nil
	}
	whole := hostname + "." + domain
	if len(whole) > maxKernelHostname {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %q has %d characters: a "+
			"hostname (spec.setHostnameAsFQDN) may have %d", whole, len(whole), maxKernelHostname)
	}
	return whole, nil
}
