package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func podWith(change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "u1"}}
	if change != nil {
		change(pod)
	}
	return pod
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 60) + "-.-" + "zzz"
	for name, c := range map[string]struct {
		change       func(*corev1.Pod)
		host, domain string
		fault        string
	}{
		"name":      {nil, "web-0", "", ""},
		"hostname":  {func(p *corev1.Pod) { p.Spec.Hostname = "h" }, "h", "", ""},
		"subdomain": {func(p *corev1.Pod) { p.Spec.Subdomain = "sub" }, "web-0", "sub.shop.svc.cluster.local", ""},
		"cut":       {func(p *corev1.Pod) { p.Name = long }, strings.Repeat("a", 60), "", ""},
		"override": {func(p *corev1.Pod) { p.Spec.HostnameOverride, p.Spec.Subdomain = ptr.To("x.example"), "sub" },
			"x.example", "", ""},
		"bad hostname":  {func(p *corev1.Pod) { p.Spec.Hostname = "A B" }, "", "", "spec.hostname"},
		"bad subdomain": {func(p *corev1.Pod) { p.Spec.Subdomain = "a.b" }, "", "", "spec.subdomain"},
		"bad override":  {func(p *corev1.Pod) { p.Spec.HostnameOverride = ptr.To("_") }, "", "", "spec.hostnameOverride"},
	} {
		t.Run(name, func(t *testing.T) {
			host, domain, err := Hostname(podWith(c.change), "cluster.local")
			if c.fault != "" {
				require.ErrorContains(t, err, c.fault)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.host, host)
			require.Equal(t, c.domain, domain)
		})
	}
}

func TestKernelHostname(t *testing.T) {
	fqdn := podWith(func(p *corev1.Pod) { p.Spec.SetHostnameAsFQDN = ptr.To(true) })
	name, err := KernelHostname(fqdn, "h", "sub.shop.svc.cluster.local")
	require.NoError(t, err)
	require.Equal(t, "h.sub.shop.svc.cluster.local", name)
	name, err = KernelHostname(podWith(nil), "h", "sub.shop.svc.cluster.local")
	require.NoError(t, err)
	require.Equal(t, "h", name)
	_, err = KernelHostname(fqdn, strings.Repeat("h", 40), "sub.shop.svc.cluster.local")
	require.ErrorContains(t, err, "has 67 characters: a hostname (spec.setHostnameAsFQDN) may have 64")
}

func TestHosts(t *testing.T) {
	pod := podWith(func(p *corev1.Pod) {
		p.Spec.HostAliases = []corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"foo", "bar"}}}
	})
	require.Equal(t, `# Kubernetes-managed hosts file.
127.0.0.1	localhost
::1	localhost ip6-localhost ip6-loopback
fe00::0	ip6-localnet
fe00::0	ip6-mcastprefix
fe00::1	ip6-allnodes
fe00::2	ip6-allrouters
10.0.0.1	h.d	h
fd00::1	h.d	h

# Entries added by HostAliases.
1.2.3.4	foo	bar
`, string(HostsFile(pod, []string{"10.0.0.1", "fd00::1"}, "h", "d")))
	require.Contains(t, string(HostsFile(podWith(nil), []string{"10.0.0.1"}, "h", "")), "10.0.0.1\th\n")
	require.Equal(t, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 me\n",
		string(HostNetworkHostsFile(podWith(nil), []byte("127.0.0.1 me\n"))))
}

func TestDNS(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(file, []byte(
		"# a comment\nnameserver 9.9.9.9\nsearch first.example\nsearch corp.example. .\noptions ndots:1 rotate\noptions ndots:2\n"), 0o600))
	cluster := DNS{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local", ResolvConf: file}
	var long []string // 2023 characters
	for i := range 8 {
		long = append(long, strings.Repeat(string(rune('a'+i)), 252))
	}
	const clusterSearch = "shop.svc.cluster.local svc.cluster.local cluster.local corp.example"

	for name, c := range map[string]struct {
		dns                        DNS
		spec                       corev1.PodSpec
		servers, searches, options string
		warning                    string
	}{
		"ClusterFirst":   {cluster, corev1.PodSpec{DNSPolicy: "ClusterFirst"}, "10.96.0.10", clusterSearch, "ndots:5", ""},
		"no policy":      {cluster, corev1.PodSpec{}, "10.96.0.10", clusterSearch, "ndots:5", ""},
		"Default":        {cluster, corev1.PodSpec{DNSPolicy: "Default"}, "9.9.9.9", "corp.example", "ndots:2 rotate", ""},
		"host network":   {cluster, corev1.PodSpec{DNSPolicy: "ClusterFirst", HostNetwork: true}, "9.9.9.9", "corp.example", "ndots:2 rotate", ""},
		"WithHostNet":    {cluster, corev1.PodSpec{DNSPolicy: "ClusterFirstWithHostNet", HostNetwork: true}, "10.96.0.10", clusterSearch, "ndots:5", ""},
		"no cluster DNS": {DNS{ResolvConf: file}, corev1.PodSpec{}, "9.9.9.9", "corp.example", "ndots:2 rotate", ReasonMissingClusterDNS},
		"no file":        {DNS{}, corev1.PodSpec{DNSPolicy: "Default"}, "127.0.0.1", ".", "", ""},
		"None":           {cluster, corev1.PodSpec{DNSPolicy: "None", DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}}}, "1.1.1.1", "", "", ""},
		"too many": {cluster, corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "2.2.2.2", "3.3.3.3"}}},
			"10.96.0.10 1.1.1.1 2.2.2.2", clusterSearch, "ndots:5", ReasonDNSConfigForming},
		"too long": {DNS{}, corev1.PodSpec{DNSPolicy: "None", DNSConfig: &corev1.PodDNSConfig{Searches: append(long, strings.Repeat("z", 25))}},
			"", strings.Join(long, " "), "", ReasonDNSConfigForming},
		"longer than a name": {DNS{}, corev1.PodSpec{DNSPolicy: "None", DNSConfig: &corev1.PodDNSConfig{
			Searches: []string{"a", strings.Repeat("b", 254), "c"}}}, "", "a c", "", ReasonDNSConfigForming},
		"merged": {cluster, corev1.PodSpec{DNSPolicy: "Default", DNSConfig: &corev1.PodDNSConfig{
			Nameservers: []string{"9.9.9.9", "8.8.8.8"}, Searches: []string{"corp.example", "my.example"},
			Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("3")}, {Name: "edns0"}},
		}}, "9.9.9.9 8.8.8.8", "corp.example my.example", "ndots:3 rotate edns0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, warnings, err := c.dns.ForPod(podWith(func(p *corev1.Pod) { p.Spec = c.spec }))
			require.NoError(t, err)
			require.Equal(t, c.servers, strings.Join(got.Servers, " "))
			require.Equal(t, c.searches, strings.Join(got.Searches, " "))
			require.Equal(t, c.options, strings.Join(got.Options, " "))
			reasons := make([]string, 0, 1)
			for _, w := range warnings {
				reasons = append(reasons, w.Reason)
			}
			require.Equal(t, c.warning, strings.Join(reasons, " "))
		})
	}
	_, _, err := (&DNS{ResolvConf: file + ".absent"}).ForPod(podWith(nil))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestNodeWithTooManySearchDomains(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	check := func(clusterDomain string, domains ...string) error {
		require.NoError(t, os.WriteFile(file, []byte("search "+strings.Join(domains, " ")+"\n"), 0o600))
		return (&DNS{ResolvConf: file, ClusterDomain: clusterDomain}).CheckNode()
	}
	many := strings.Split(strings.TrimSuffix(strings.Repeat("a,", 30), ","), ",")
	require.NoError(t, check("cluster.local", many[:29]...))
	require.ErrorContains(t, check("cluster.local", many...), "has 30 search domains: a Pod can have 29")
	require.NoError(t, check("", many...))
	require.ErrorContains(t, check("", strings.Repeat("a", 254)), "more than 253 characters")
	require.ErrorIs(t, (&DNS{ResolvConf: file + ".absent"}).CheckNode(), os.ErrNotExist)
	require.NoError(t, (&DNS{}).CheckNode())
}
