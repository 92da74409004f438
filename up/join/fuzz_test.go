package join

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzInfo reads an arbitrary ConfigMap of a cluster: what is accepted is complete, and the same when it is written and read again.
func FuzzInfo(f *testing.F) {
	f.Add("n", "10.85.0.0/16", "10.86.0.0/16", "cluster.local", "true", "10.86.0.10", "", "", "192.0.2.7/24")
	f.Add("n", "fd00::/64", "10.86.0.0/8", "x", "T", "::1%eth0", "fd01::/48", "fd02::/112", "")
	f.Add("", "10.0.0.0/33", "x", "", "yes", "010.0.0.1", "10.0.0.0/8", "::ffff:10.0.0.0/100", "-")
	f.Fuzz(func(t *testing.T, node, pods, services, domain, proxy, dns, pods6, services6, balancers string) {
		info, err := parseInfo(map[string]string{
			keyNode: node, keyPodCIDR: pods, keyServiceCIDR: services, keyClusterDomain: domain, keyProxy: proxy, keyDNSService: dns, keyDNSServer: dns,
			keyPodCIDR6: pods6, keyServiceCIDR6: services6, keyLoadBalancer: balancers, keyAddress6: dns,
		})
		if err != nil {
			return
		}
		require.NotEmpty(t, info.Node)
		require.NotEmpty(t, info.ClusterDomain)
		require.True(t, info.PodCIDR.IsValid() && info.ServiceCIDR.IsValid())
		require.NotContains(t, info.PodCIDRs()+info.ServiceCIDRs(), "invalid")
		again, err := parseInfo(info.ConfigMap().Data)
		require.NoError(t, err)
		require.Equal(t, info, again)
	})
}

// FuzzServer reads what a user or a file names as the API server and its pin: a server is an address of https with a port and nothing else.
func FuzzServer(f *testing.F) {
	f.Add("192.0.2.10", "sha256:"+strings.Repeat("0a", 32), "abcdef.0123456789abcdef")
	f.Add("https://[2001:db8::1]:7443/", "SHA256:"+strings.Repeat("ZZ", 32), "abcdef.")
	f.Add("https://user:password@host:99999/?x#y", "sha256:", "")
	f.Add("[::1%25eth0]", "sha512:00", ".")
	f.Fuzz(func(t *testing.T, text, pin, token string) {
		server, err := ParseServer(text, "6443")
		if err == nil {
			require.Equal(t, "https", server.Scheme)
			require.NotEmpty(t, server.Hostname())
			require.NotEmpty(t, server.Port())
			require.Empty(t, server.Path+server.RawQuery+server.Fragment)
			require.Nil(t, server.User, "a password would be written into files and messages")
			again, err := ParseServer(server.String(), "1")
			require.NoError(t, err, server.String())
			require.Equal(t, server.String(), again.String())
		}
		if CheckPin(pin) == nil {
			require.Len(t, pin, len(hashPrefix)+64)
		}
		if err := CheckToken(token); err != nil && token != "" && len(token) > 20 {
			require.NotContains(t, err.Error(), token)
		}
		_, _ = PinOf([]byte(text))
	})
}
