package join_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/up/join"
)

func exampleInfo() join.Info {
	return join.Info{
		Node: "home", PodCIDR: netip.MustParsePrefix("10.85.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.86.0.0/16"),
		ClusterDomain: "cluster.local", DNSService: netip.MustParseAddr("10.86.0.10"), DNSServer: netip.MustParseAddr("10.85.0.1"),
		Proxy: true, LoadBalancers: netip.MustParsePrefix("192.0.2.64/28"),
	}
}

func TestInfoIsReadAsWritten(t *testing.T) {
	both := exampleInfo()
	both.PodCIDR6, both.ServiceCIDR6 = netip.MustParsePrefix("fd00:85::/56"), netip.MustParsePrefix("fd00:86::/112")
	both.Address6 = netip.MustParseAddr("2001:db8::1")
	require.Equal(t, "10.85.0.0/16,fd00:85::/56", both.PodCIDRs())
	require.Equal(t, "10.86.0.0/16", exampleInfo().ServiceCIDRs())
	bare := exampleInfo()
	bare.DNSService, bare.DNSServer, bare.LoadBalancers, bare.Proxy = netip.Addr{}, netip.Addr{}, netip.Prefix{}, false
	for _, info := range []join.Info{exampleInfo(), both, bare} {
		got, ok, err := join.ReadInfo(t.Context(), fake.NewClientset(info.ConfigMap()))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, info, got)
	}
}

func TestForeignClustersHaveNoInfo(t *testing.T) {
	client := fake.NewClientset()
	_, ok, err := join.ReadInfo(t.Context(), client)
	require.NoError(t, err)
	require.False(t, ok)
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "berth-cluster", nil)
	})
	_, ok, err = join.ReadInfo(t.Context(), client)
	require.NoError(t, err, "an authorizer that does not know the ConfigMap is that of another cluster")
	require.False(t, ok)
}

func TestDamagedInfoIsAnError(t *testing.T) {
	object := exampleInfo().ConfigMap()
	object.Data["podCIDR"], object.Data["node"] = "10.85", ""
	_, _, err := join.ReadInfo(t.Context(), fake.NewClientset(object))
	require.ErrorContains(t, err, "podCIDR")
	require.ErrorContains(t, err, "node and clusterDomain are required")
	require.ErrorContains(t, err, "kube-system/berth-cluster")
}

func TestTokensAreSecretsThatExpire(t *testing.T) {
	client := fake.NewClientset()
	now := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	forever, err := join.CreateToken(t.Context(), client, now, 0, "for tests")
	require.NoError(t, err)
	token, err := join.CreateToken(t.Context(), client, now, time.Hour, "")
	require.NoError(t, err)
	require.NoError(t, join.CheckToken(token))
	id, secret, _ := strings.Cut(token, ".")
	stored, err := client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+id, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.SecretTypeBootstrapToken, stored.Type)
	require.Equal(t, map[string]string{
		"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
		"auth-extra-groups": "system:bootstrappers:berth", "expiration": "2026-11-23T10:00:00Z",
	}, stored.StringData)

	moveStringData(t, client) // as the API server does
	tokens, err := join.ListTokens(t.Context(), client)
	require.NoError(t, err)
	require.Len(t, tokens, 2)
	require.Equal(t, id, tokens[0].ID)
	require.True(t, tokens[0].CanJoin)
	require.True(t, now.Add(time.Hour).Equal(tokens[0].Expires.Time))
	require.Nil(t, tokens[1].Expires)
	require.Equal(t, "for tests", tokens[1].Description)

	require.NoError(t, join.DeleteToken(t.Context(), client, forever))
	require.NoError(t, join.DeleteToken(t.Context(), client, id))
	require.ErrorContains(t, join.DeleteToken(t.Context(), client, id), "does not exist")
	require.ErrorContains(t, join.DeleteToken(t.Context(), client, "../x"), "not the ID of a token")
	require.ErrorContains(t, join.CheckToken("abc"), "not a bootstrap token")
}

func moveStringData(t *testing.T, client *fake.Clientset) {
	t.Helper()
	api := client.CoreV1().Secrets("kube-system")
	list, err := api.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range list.Items {
		secret := &list.Items[i]
		secret.Data = map[string][]byte{}
		for key, value := range secret.StringData {
			secret.Data[key] = []byte(value)
		}
		secret.StringData = nil
		_, err := api.Update(t.Context(), secret, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
}

// TestFetchCA has a server with a self-signed certificate, which is its own CA.
func TestFetchCA(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pin := join.Pin(server.Certificate())
	address, err := url.Parse(server.URL)
	require.NoError(t, err)
	ca, err := join.FetchCA(t.Context(), address, strings.ToUpper(pin[7:8])+pin[8:])
	require.Error(t, err, "that is no pin")
	require.Nil(t, ca)
	ca, err = join.FetchCA(t.Context(), address, pin)
	require.NoError(t, err)
	got, err := join.PinOf(ca)
	require.NoError(t, err)
	require.Equal(t, pin, got)

	_, err = join.FetchCA(t.Context(), address, "sha256:"+strings.Repeat("0", 64))
	require.ErrorContains(t, err, "no CA of the server has the hash")
	other := *address
	other.Host = strings.Replace(address.Host, "127.0.0.1", "127.0.0.2", 1)
	_, err = join.FetchCA(t.Context(), &other, pin)
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = join.FetchCA(ctx, address, pin)
	require.ErrorIs(t, err, context.Canceled)
}

func TestParseServer(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.10": "https://192.0.2.10:6443", "https://192.0.2.10:7443/": "https://192.0.2.10:7443",
		"cluster.example.test:6443": "https://cluster.example.test:6443", "[2001:db8::1]:6443": "https://[2001:db8::1]:6443",
	} {
		server, err := join.ParseServer(text, "6443")
		require.NoError(t, err, text)
		require.Equal(t, want, server.String())
	}
	for _, text := range []string{"", "http://192.0.2.10:6443", "https://", "https://192.0.2.10/path", "a b",
		"https://user:password@192.0.2.10", "192.0.2.10:65536", "https://192.0.2.10#a", "https://192.0.2.10?"} {
		_, err := join.ParseServer(text, "6443")
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "password")
	}
}

func TestCheckPin(t *testing.T) {
	require.NoError(t, join.CheckPin("sha256:"+strings.Repeat("aB", 32)))
	for _, pin := range []string{"", "sha256:", strings.Repeat("a", 64), "sha256:" + strings.Repeat("x", 64), "sha512:" + strings.Repeat("a", 64)} {
		require.ErrorContains(t, join.CheckPin(pin), "64 hex digits")
	}
}
