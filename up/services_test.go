package up

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func servicesLayout(t *testing.T) Layout {
	t.Helper()
	l, err := NewLayout(Config{DataDir: "/data", NodeName: "n1", PodCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16"})
	require.NoError(t, err)
	return l
}

func TestCorefileForwardsOnlyWhereThereIsAServer(t *testing.T) {
	l := servicesLayout(t)
	resolvConf := filepath.Join(t.TempDir(), "resolv.conf")
	require.NotContains(t, l.corefile(resolvConf), "forward", "the file does not exist")
	require.NoError(t, os.WriteFile(resolvConf, []byte("search example.test\n# nameserver 10.0.0.1\nnameserver\n"), 0o600))
	require.NotContains(t, l.corefile(resolvConf), "forward", "it names no server")
	require.NoError(t, os.WriteFile(resolvConf, []byte("options edns0\nnameserver 127.0.0.53\n"), 0o600))
	file := l.corefile(resolvConf)
	require.Contains(t, file, "forward . "+resolvConf)
	require.Contains(t, file, "bind 10.1.0.1\n")
	require.Contains(t, file, "kubeconfig /data/kubeconfigs/dns.kubeconfig")
	require.Contains(t, file, "disable denial cluster.local", "no negative answer is kept")
}

func TestDNSServiceHasTheUsualAddressAndOurEndpoint(t *testing.T) {
	l := servicesLayout(t)
	objects, err := l.dnsObjects()
	require.NoError(t, err)
	service, slice := objects[0].(*corev1.Service), objects[1].(*discoveryv1.EndpointSlice)
	require.Equal(t, "10.2.0.10", service.Spec.ClusterIP)
	require.Empty(t, service.Spec.Selector, "Kubernetes must not replace the endpoint")
	require.Equal(t, service.Name, slice.Labels[discoveryv1.LabelServiceName])
	require.Equal(t, []string{"10.1.0.1"}, slice.Endpoints[0].Addresses)
	l.ServiceCIDR = "10.2.0.32/28"
	address, err := l.dnsServiceAddress()
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddr("10.2.0.42"), address)
}

func TestProxyConfigListensOnLoopbackAndChangesNoSysctl(t *testing.T) {
	l := servicesLayout(t)
	data, err := l.proxyConfig()
	require.NoError(t, err)
	var config struct {
		Mode, ClusterCIDR, HostnameOverride    string
		HealthzBindAddress, MetricsBindAddress string
		NodePortAddresses                      []string
		DetectLocal                            struct{ BridgeInterface string }
		Conntrack                              map[string]any
	}
	require.NoError(t, json.Unmarshal(data, &config))
	require.Equal(t, "nftables", config.Mode)
	require.Equal(t, "10.1.0.0/16", config.ClusterCIDR)
	require.Equal(t, "n1", config.HostnameOverride)
	require.Equal(t, []string{"10.1.0.1/32"}, config.NodePortAddresses)
	require.Equal(t, l.Bridge(), config.DetectLocal.BridgeInterface)
	for _, address := range []string{config.HealthzBindAddress, config.MetricsBindAddress} {
		parsed, err := netip.ParseAddrPort(address)
		require.NoError(t, err)
		require.True(t, parsed.Addr().IsLoopback())
	}
	require.NotEqual(t, config.HealthzBindAddress, config.MetricsBindAddress)
	require.Equal(t, map[string]any{"maxPerCore": 0.0, "min": 0.0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}, config.Conntrack)
}
