package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// FuzzResolvConf makes the resolver configuration of a Pod of an arbitrary file of the node: it is within the limits of resolvers, and each entry
// is one word, which the runtime can write.
func FuzzResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.1\nsearch a.example b.example.\noptions ndots:2 rotate\n"), "x.example", "ndots", "3")
	f.Add([]byte("search .\noptions ndots:1 ndots:2 # last\n;nameserver 192.0.2.1"), "y", "timeout", "")
	f.Add([]byte("search .. a..\n"), "y", "", "")
	f.Add([]byte("search "+strings.Repeat("a.example ", 40)), "z", "edns0", "")
	f.Fuzz(func(t *testing.T, content []byte, search, option, value string) {
		node := ParseResolvConf(content)
		for _, domain := range node.Searches {
			require.NotContains(t, []string{"", "."}, domain, "some resolvers fail because of it")
		}
		path := filepath.Join(t.TempDir(), "resolv.conf")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		dns := &DNS{ClusterDNS: []string{"192.0.2.10"}, ClusterDomain: "cluster.local", ResolvConf: path}
		for _, policy := range []corev1.DNSPolicy{corev1.DNSDefault, corev1.DNSClusterFirst} {
			config, _, err := dns.ForPod(podWith(func(p *corev1.Pod) { p.Spec.DNSPolicy = policy }))
			require.NoError(t, err)
			require.LessOrEqual(t, len(config.Servers), maxNameservers)
			require.LessOrEqual(t, len(config.Searches), maxSearchDomains)
			require.LessOrEqual(t, len(strings.Join(config.Searches, " ")), maxSearchListSize)
			for _, word := range append(append(config.Servers, config.Searches...), config.Options...) {
				require.Len(t, strings.Fields(word), 1)
			}
		}
		own, _, err := dns.ForPod(podWith(func(p *corev1.Pod) {
			p.Spec.DNSPolicy = corev1.DNSDefault
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: []string{search}, Options: []corev1.PodDNSConfigOption{{Name: option, Value: &value}}}
		}))
		require.NoError(t, err)
		require.Contains(t, own.Options, strings.TrimSuffix(option+":"+value, map[bool]string{true: ":"}[value == ""]))
		if err := dns.CheckNode(); err == nil {
			require.Subset(t, mustForPod(t, dns, corev1.DNSClusterFirst), node.Searches)
		}
	})
}

// mustForPod returns the search domains of a Pod.
func mustForPod(t *testing.T, dns *DNS, policy corev1.DNSPolicy) []string {
	t.Helper()
	config, _, err := dns.ForPod(podWith(func(p *corev1.Pod) { p.Spec.DNSPolicy = policy }))
	require.NoError(t, err)
	return config.Searches
}

// TestResolvConfLongLine reads a file that has a line of more than 64 KiB: it hides none of the others.
func TestResolvConfLongLine(t *testing.T) {
	config := ParseResolvConf([]byte("# " + strings.Repeat("x", 1<<17) + "\nnameserver 192.0.2.1\n"))
	require.Equal(t, []string{"192.0.2.1"}, config.Servers)
}
