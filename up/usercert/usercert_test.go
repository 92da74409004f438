package usercert_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/up/usercert"
)

// newAPI is an API that signs what is approved, as the controller manager does.
func newAPI(t *testing.T) *fake.Clientset {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true}
	client := fake.NewClientset()
	client.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		object := action.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		object.Name, object.UID = "csr-1", "uid-1" // which the API generates
		return false, nil, nil
	})
	client.PrependReactor("update", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		object := action.(clienttesting.UpdateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		require.Equal(t, "approval", action.GetSubresource())
		require.Equal(t, certificatesv1.KubeAPIServerClientSignerName, object.Spec.SignerName)
		block, _ := pem.Decode(object.Spec.Request)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		require.NoError(t, err)
		now := time.Now()
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: request.Subject, NotBefore: now, NotAfter: now.Add(time.Duration(*object.Spec.ExpirationSeconds) * time.Second),
		}, authority, request.PublicKey, key)
		require.NoError(t, err)
		object.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		return false, nil, nil
	})
	return client
}

func TestIssue(t *testing.T) {
	client := newAPI(t)
	issued, err := usercert.Issue(t.Context(), client, usercert.Identity{User: "anna", Groups: []string{"developers", "ops"}}, time.Hour)
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(issued.Cert, issued.Key)
	require.NoError(t, err, "certificate and key belong together")
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	require.NoError(t, err)
	require.Equal(t, "anna", cert.Subject.CommonName)
	require.ElementsMatch(t, []string{"developers", "ops"}, cert.Subject.Organization)
	require.WithinDuration(t, time.Now().Add(time.Hour), cert.NotAfter, 10*time.Minute)
	left, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items, "the request is deleted")
}

func TestNamesOfComponentsAreRefused(t *testing.T) {
	for says, identity := range map[string]usercert.Identity{
		"--user":           {},
		"admin.kubeconfig": {User: "eve", Groups: []string{"system:masters"}},
		"components":       {User: "system:node:home", Groups: []string{"system:nodes"}},
		"berth:":           {User: "berth:attacher"},
		"spaces":           {User: " anna"},
	} {
		_, err := usercert.Issue(t.Context(), fake.NewClientset(), identity, time.Hour)
		require.ErrorContains(t, err, says)
	}
	for _, life := range []time.Duration{0, time.Minute, 2 * usercert.MaxLife} {
		_, err := usercert.Issue(t.Context(), fake.NewClientset(), usercert.Identity{User: "anna"}, life)
		require.ErrorContains(t, err, "--ttl")
	}
}

func TestUnsignedRequestIsDeleted(t *testing.T) {
	client := fake.NewClientset()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := usercert.Issue(ctx, client, usercert.Identity{User: "anna"}, time.Hour)
	require.Error(t, err)
	left, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items)
}

func TestHasRights(t *testing.T) {
	identity := usercert.Identity{User: "anna", Groups: []string{"developers"}}
	binding := func(kind, name string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns"}, Subjects: []rbacv1.Subject{{Kind: kind, Name: name}}}
	}
	for _, tt := range []struct {
		binding *rbacv1.RoleBinding
		want    bool
	}{
		{binding(rbacv1.UserKind, "anna"), true}, {binding(rbacv1.GroupKind, "developers"), true},
		{binding(rbacv1.UserKind, "developers"), false}, {binding(rbacv1.GroupKind, "anna"), false}, {binding(rbacv1.UserKind, "eve"), false},
	} {
		got, err := usercert.HasRights(t.Context(), fake.NewClientset(tt.binding), identity)
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%+v", tt.binding.Subjects)
	}
}
