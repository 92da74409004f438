package trustbundle_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/trustbundle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}

// certificate returns a new certificate in PEM form.
func certificate(t *testing.T, name string) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func newBundle(name, signer string, labels map[string]string, certificates ...string) *certificatesv1beta1.ClusterTrustBundle {
	return &certificatesv1beta1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: strings.Join(certificates, "a comment\n")},
	}
}

func start(t *testing.T, client *fake.Clientset) *trustbundle.Manager {
	t.Helper()
	m, err := trustbundle.New(trustbundle.Deps{Client: client})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return m
}

// names returns the sorted names of the certificates, in their order.
func names(t *testing.T, anchors []byte) []string {
	t.Helper()
	list := []string{}
	for rest := anchors; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			require.Empty(t, strings.TrimSpace(string(rest)))
			return list
		}
		c, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		list = append(list, c.Subject.CommonName)
	}
}

func TestTrustAnchors(t *testing.T) {
	a, b, c := certificate(t, "a"), certificate(t, "b"), certificate(t, "c")
	m := start(t, fake.NewClientset(
		newBundle("plain", "", nil, a, b, a),
		newBundle("signer:1", "example.com/s", map[string]string{"live": "yes"}, b),
		newBundle("signer:2", "example.com/s", map[string]string{"live": "yes"}, b, c),
		newBundle("signer:3", "example.com/s", nil, a),
		newBundle("other:1", "example.com/t", map[string]string{"live": "yes"}, a),
	))
	live := &metav1.LabelSelector{MatchLabels: map[string]string{"live": "yes"}}
	for name, test := range map[string]struct {
		source corev1.ClusterTrustBundleProjection
		want   []string
		err    string
	}{
		"by name":               {corev1.ClusterTrustBundleProjection{Name: ptr.To("plain")}, []string{"a", "b"}, ""},
		"missing":               {corev1.ClusterTrustBundleProjection{Name: ptr.To("none")}, nil, `ClusterTrustBundle "none" not found`},
		"missing but optional":  {corev1.ClusterTrustBundleProjection{Name: ptr.To("none"), Optional: ptr.To(true)}, []string{}, ""},
		"by signer":             {corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s"), LabelSelector: live}, []string{"b", "c"}, ""},
		"all of a signer":       {corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s"), LabelSelector: &metav1.LabelSelector{}}, []string{"a", "b", "c"}, ""},
		"no selector":           {corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s")}, nil, "no ClusterTrustBundle of signer"},
		"no selector, optional": {corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s"), Optional: ptr.To(true)}, []string{}, ""},
		"neither":               {corev1.ClusterTrustBundleProjection{}, nil, "needs a name or a signerName"},
		"long selector": {corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s"), LabelSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: metav1.LabelSelectorOpIn, Values: manyValues()}},
		}}, nil, "characters, more than"},
	} {
		t.Run(name, func(t *testing.T) {
			anchors, err := m.TrustAnchors(t.Context(), pod, &test.source)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.ElementsMatch(t, test.want, names(t, anchors))
			again, err := m.TrustAnchors(t.Context(), pod, &test.source)
			require.NoError(t, err)
			require.Equal(t, anchors, again, "the order stays")
		})
	}
}

func manyValues() []string {
	values := make([]string, 3000)
	for i := range values {
		values[i] = strings.Repeat("v", 40) + strings.Repeat("w", i%20)
	}
	return values
}

func TestChangesNotifyPods(t *testing.T) {
	client := fake.NewClientset()
	m := start(t, client)
	changed := make(chan types.UID, 100)
	cancel := m.Subscribe(func(uid types.UID) { changed <- uid })
	defer cancel()
	source := &corev1.ClusterTrustBundleProjection{Name: ptr.To("b")}
	_, err := m.TrustAnchors(t.Context(), pod, source)
	require.ErrorContains(t, err, "not found")
	bundles := client.CertificatesV1beta1().ClusterTrustBundles()
	_, err = bundles.Create(t.Context(), newBundle("b", "", nil, certificate(t, "a")), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		select {
		case uid := <-changed:
			require.Equal(t, types.UID("u"), uid)
		default:
		}
		_, err := m.TrustAnchors(t.Context(), pod, source)
		return err == nil
	}, time.Minute, time.Millisecond)
	m.Forget("u")
}

// TestUnservedAPIIsNamed has an API server without the objects, until it has them.
func TestUnservedAPIIsNamed(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "clustertrustbundles", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(certificatesv1beta1.Resource("clustertrustbundles"), "")
	})
	m := start(t, client)
	_, err := m.TrustAnchors(t.Context(), pod, &corev1.ClusterTrustBundleProjection{Name: ptr.To("b")})
	require.ErrorContains(t, err, "the API server does not serve ClusterTrustBundles")
	require.ErrorContains(t, err, "ClusterTrustBundleProjection=true")
}

func TestNothingIsSentWithoutNeed(t *testing.T) {
	client := fake.NewClientset()
	start(t, client)
	require.Empty(t, client.Actions())
}
