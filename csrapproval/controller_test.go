package csrapproval_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/csrapproval"
)

func node(name string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, address := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return n
}

var services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}

var (
	serving = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	client  = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
)

func request(t *testing.T, signer string, csr x509.CertificateRequest, usages []certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &csr, key)
	require.NoError(t, err)
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Usages: usages, Username: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"},
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}
}

// approves runs a controller on the objects until it has nothing to do, and reports whether it approved the request. then,
// if not nil, changes the objects before.
func approves(t *testing.T, request *certificatesv1.CertificateSigningRequest, then func(client *fake.Clientset), nodes ...*corev1.Node) bool {
	t.Helper()
	var approved bool
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(request)
		for _, node := range nodes {
			require.NoError(t, client.Tracker().Add(node))
		}
		c, err := csrapproval.New(csrapproval.Deps{Client: client}, csrapproval.Config{Services: services})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { require.NoError(t, c.Start(ctx)) })
		synctest.Wait()
		require.NoError(t, c.Ready())
		require.ErrorContains(t, c.Start(ctx), "was started before")
		if then != nil {
			then(client)
			synctest.Wait()
		}
		after, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), request.Name, metav1.GetOptions{})
		require.NoError(t, err)
		for _, condition := range after.Status.Conditions {
			approved = approved || condition.Type == certificatesv1.CertificateApproved
		}
		cancel()
		running.Wait()
	})
	return approved
}

func TestServingCertificates(t *testing.T) {
	subject := pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}
	ip := net.ParseIP("192.0.2.1")
	ofAddress := func(text string) x509.CertificateRequest {
		return x509.CertificateRequest{Subject: subject, IPAddresses: []net.IP{net.ParseIP(text)}}
	}
	good := x509.CertificateRequest{Subject: subject, DNSNames: []string{"n1"}, IPAddresses: []net.IP{ip}}
	for name, tt := range map[string]struct {
		csr   x509.CertificateRequest
		nodes []*corev1.Node
		want  bool
	}{
		"own name and address":      {good, []*corev1.Node{node("n1", "192.0.2.1"), node("n2", "192.0.2.2")}, true},
		"no Node yet":               {good, nil, false},
		"another address":           {good, []*corev1.Node{node("n1", "192.0.2.9")}, false},
		"the address of two nodes":  {good, []*corev1.Node{node("n1", "192.0.2.1"), node("n2", "192.0.2.1")}, false},
		"the name of another node":  {x509.CertificateRequest{Subject: subject, DNSNames: []string{"n2"}}, []*corev1.Node{node("n1", "n2"), node("n2")}, false},
		"the name in other letters": {x509.CertificateRequest{Subject: subject, DNSNames: []string{"N2"}}, []*corev1.Node{node("n1", "N2"), node("n2")}, false},
		"a wildcard":                {x509.CertificateRequest{Subject: subject, DNSNames: []string{"*.example"}}, []*corev1.Node{node("n1", "*.example"), node("n2.example")}, false},
		"the API server's name":     {x509.CertificateRequest{Subject: subject, DNSNames: []string{"kubernetes.default.svc"}}, []*corev1.Node{node("n1", "kubernetes.default.svc")}, false},
		"the API server's address":  {ofAddress("10.96.0.1"), []*corev1.Node{node("n1", "10.96.0.1")}, false},
		"it in its IPv6 form":       {ofAddress("fd00:96::1"), []*corev1.Node{node("n1", "fd00:96::1")}, false},
		"loopback":                  {ofAddress("127.0.0.1"), []*corev1.Node{node("n1", "127.0.0.1")}, false},
		"any address":               {ofAddress("::"), []*corev1.Node{node("n1", "::")}, false},
		"an address written otherwise": {x509.CertificateRequest{Subject: subject, IPAddresses: []net.IP{net.ParseIP("2001:db8::1")}},
			[]*corev1.Node{node("n1", "2001:db8::1"), node("n2", "2001:DB8:0::1")}, false},
		"another name":              {x509.CertificateRequest{Subject: subject, DNSNames: []string{"kubernetes.default"}}, []*corev1.Node{node("n1")}, false},
		"no names":                  {x509.CertificateRequest{Subject: subject}, []*corev1.Node{node("n1")}, false},
		"another node's subject":    {x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n2", Organization: []string{"system:nodes"}}, DNSNames: []string{"n1"}}, []*corev1.Node{node("n1")}, false},
		"another organization":      {x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:masters"}}, DNSNames: []string{"n1"}}, []*corev1.Node{node("n1")}, false},
		"a URI beside its own name": {x509.CertificateRequest{Subject: subject, DNSNames: []string{"n1"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "x"}}}, []*corev1.Node{node("n1")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, approves(t, request(t, certificatesv1.KubeletServingSignerName, tt.csr, serving), nil, tt.nodes...))
		})
	}
	t.Run("the address comes later", func(t *testing.T) {
		require.True(t, approves(t, request(t, certificatesv1.KubeletServingSignerName, good, serving), func(client *fake.Clientset) {
			_, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node("n1", "192.0.2.1"), metav1.UpdateOptions{})
			require.NoError(t, err)
		}, node("n1")))
	})
	t.Run("usages of a client", func(t *testing.T) {
		require.False(t, approves(t, request(t, certificatesv1.KubeletServingSignerName, good, client), nil, node("n1", "192.0.2.1")))
		require.False(t, approves(t, request(t, certificatesv1.KubeletServingSignerName, good, append(client, serving...)), nil, node("n1", "192.0.2.1")))
	})
}

// TestRequestThatChangesBeforeItIsApproved: a conflict is no failure, as the event of the change follows.
func TestRequestThatChangesBeforeItIsApproved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		csr := x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:kube-proxy"}}
		asked := request(t, certificatesv1.KubeAPIServerClientSignerName, csr, client)
		client := fake.NewClientset(asked, node("n1", "192.0.2.1"))
		requests := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
		conflicts := 0
		client.PrependReactor("update", requests.Resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
			if conflicts++; action.GetSubresource() != "approval" || conflicts > 1 {
				return false, nil, nil
			}
			changed := asked.DeepCopy()
			changed.Labels = map[string]string{"changed": ""}
			require.NoError(t, client.Tracker().Update(requests, changed, ""))
			return true, nil, apierrors.NewConflict(requests.GroupResource(), asked.Name, errors.New("it has changed"))
		})
		var logged bytes.Buffer
		c, err := csrapproval.New(csrapproval.Deps{
			Client: client, Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn})),
		}, csrapproval.Config{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { require.NoError(t, c.Start(ctx)) })
		synctest.Wait()
		cancel()
		running.Wait()
		after, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), asked.Name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Len(t, after.Status.Conditions, 1)
		require.Equal(t, map[string]string{"changed": ""}, after.Labels)
		require.Empty(t, logged.String())
	})
}

func TestProxyCertificates(t *testing.T) {
	good := x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:kube-proxy"}}
	ask := func(csr x509.CertificateRequest) *certificatesv1.CertificateSigningRequest {
		return request(t, certificatesv1.KubeAPIServerClientSignerName, csr, client)
	}
	n1 := node("n1", "192.0.2.1")
	require.True(t, approves(t, ask(good), nil, n1))
	require.False(t, approves(t, ask(good), nil, node("n2")), "the node does not exist")
	for _, csr := range []x509.CertificateRequest{
		{Subject: pkix.Name{CommonName: "berth:admin", Organization: []string{"system:masters"}}},
		{Subject: pkix.Name{CommonName: "system:kube-proxy", Organization: []string{"system:masters"}}},
		{Subject: pkix.Name{CommonName: "system:kube-controller-manager"}},
		{Subject: good.Subject, DNSNames: []string{"n1"}},
	} {
		require.False(t, approves(t, ask(csr), nil, n1), "%s", csr.Subject)
	}
	wrongUser := ask(good)
	wrongUser.Spec.Username = "system:serviceaccount:default:x"
	require.False(t, approves(t, wrongUser, nil, n1))
	noNode := ask(good)
	noNode.Spec.Groups = []string{"system:authenticated"}
	require.False(t, approves(t, noNode, nil, n1))
	kubelet := ask(good)
	kubelet.Spec.SignerName = certificatesv1.KubeAPIServerClientKubeletSignerName
	require.False(t, approves(t, kubelet, nil, n1), "Kubernetes decides about these")
	denied := ask(good)
	denied.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied}}
	require.False(t, approves(t, denied, nil, n1))
	damaged := ask(good)
	damaged.Spec.Request = []byte("x")
	require.False(t, approves(t, damaged, nil, n1))
}
