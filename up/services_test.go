package up

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/up/progress"
)

func servicesLayout(t *testing.T) Layout {
	t.Helper()
	l, err := NewLayout(Config{DataDir: "/data", NodeName: "n1", PodCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16"})
	require.NoError(t, err)
	return l
}

func TestCorefileForwardsOnlyWhereThereIsAServer(t *testing.T) {
	l := servicesLayout(t)
	require.NotContains(t, l.corefile(nil), "forward", "a server block that forwards to nothing is an error")
	file := l.corefile([]string{"10.9.9.9", "fd00::53"})
	require.Contains(t, file, "forward . 10.9.9.9 fd00::53 {")
	require.Contains(t, file, "bind 10.1.0.1\n")
	require.Contains(t, file, `kubeconfig "/data/kubeconfigs/dns.kubeconfig"`)
	require.Contains(t, file, "disable denial cluster.local", "no negative response is kept")
	require.Contains(t, file, "servfail 0s", "no failure is kept")
}

// TestPathsInTheCorefileAreOneToken has data directories whose names CoreDNS would read as several tokens, or as the end of one.
func TestPathsInTheCorefileAreOneToken(t *testing.T) {
	l := servicesLayout(t)
	for dir, want := range map[string]string{"/my data": `"/my data/`, `/a "b"`: `"/a \"b\"/`, `/a\b`: `"/a\b/`} {
		l.DataDir = dir
		require.Contains(t, l.corefile(nil), "\n        kubeconfig "+want+`kubeconfigs/dns.kubeconfig"`+"\n")
	}
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
	addresses, err := l.dnsServiceAddresses()
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.2.0.42")}, addresses)
}

// TestProxyConfigListensOnLoopback is about the item "4.3.1" of the CIS benchmark, too.
func TestProxyConfigListensOnLoopback(t *testing.T) {
	l := servicesLayout(t)
	c, err := New(Deps{Progress: progress.New(io.Discard, nil, clock.RealClock{})}, RunConfig{Layout: l})
	require.NoError(t, err)
	data, metrics, err := c.proxyConfig()
	require.NoError(t, err)
	var config struct {
		Mode, ClusterCIDR, HostnameOverride    string
		HealthzBindAddress, MetricsBindAddress string
		NodePortAddresses                      []string
		DetectLocal                            struct{ BridgeInterface string }
		Conntrack                              map[string]any
	}
	require.NoError(t, json.Unmarshal(data, &config))
	require.Equal(t, metrics, config.MetricsBindAddress)
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
	require.Equal(t, map[string]any{"maxPerCore": 0.0, "min": 0.0, "tcpEstablishedTimeout": "0s",
		"tcpCloseWaitTimeout": closeWait(closeWaitSetting).String()}, config.Conntrack)

	c.config.Inside = &isolate.Inside{Address: netip.MustParseAddr("198.18.0.2")}
	data, _, err = c.proxyConfig()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &config))
	require.Equal(t, []string{"10.1.0.1/32", "198.18.0.2/32"}, config.NodePortAddresses, "the machine reaches them")
}

func TestDNSObjectsAreRemovedWithoutDNS(t *testing.T) {
	l := servicesLayout(t)
	objects, err := l.dnsObjects()
	require.NoError(t, err)
	service, slice := objects[0].(*corev1.Service), objects[1].(*discoveryv1.EndpointSlice)

	client := fake.NewClientset(service)
	require.NoError(t, removeDNSObjects(t.Context(), client))
	require.Len(t, client.Actions(), 1, "without the slice the Service is another's")

	client = fake.NewClientset(service, slice)
	require.NoError(t, removeDNSObjects(t.Context(), client))
	_, err = client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
	_, err = client.DiscoveryV1().EndpointSlices("kube-system").Get(t.Context(), slice.Name, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))

	selecting := service.DeepCopy()
	selecting.Spec.Selector = map[string]string{"k8s-app": "kube-dns"}
	client = fake.NewClientset(selecting, slice)
	require.NoError(t, removeDNSObjects(t.Context(), client))
	_, err = client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	require.NoError(t, err, "a DNS of the user's own has it now")
}

func TestProbesOfServices(t *testing.T) {
	synced := "0"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# HELP x\nkubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} %s\n", synced)
	}))
	defer server.Close()
	isReady := proxyReady(server.Listener.Addr().String())
	require.False(t, isReady(t.Context()))
	synced = "1.7e+09"
	require.True(t, isReady(t.Context()))
	server.Close()
	require.False(t, isReady(t.Context()))
	require.False(t, dnsReady(netip.MustParseAddr("127.255.255.254"))(t.Context()), "nothing listens there")
}

func TestAServiceIsReadyWhenItsProbeSucceeds(t *testing.T) {
	var out bytes.Buffer
	c, err := New(Deps{Progress: progress.New(&out, nil, clock.RealClock{})}, RunConfig{Layout: servicesLayout(t)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ready := c.servicesReady[dnsName]
	run := c.withReadiness(dnsName, func(context.Context) bool { return true }, func(ctx context.Context) error {
		<-ready.done
		cancel()
		return nil
	})
	require.NoError(t, run(ctx))
	require.Contains(t, out.String(), "dns                        ready")

	failing := c.withReadiness(proxyName, func(context.Context) bool { return false }, func(context.Context) error { return errors.New("no nft") })
	for range maxExitsBeforeReady {
		require.ErrorContains(t, failing(t.Context()), "no nft")
	}
	require.NoError(t, c.waitServices(t.Context()), "the cluster runs without what fails")
	require.Contains(t, out.String(), "kube-proxy                 failed")
}
