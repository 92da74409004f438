//go:build integration

package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
)

// signer signs the PodCertificateRequests of one signer name, as a controller of a user does.
type signer struct {
	t      *testing.T
	c      *cluster
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

const signerName = "example.test/signer"

func newSigner(t *testing.T, c *cluster) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "test CA"}, key)
	require.NoError(t, err)
	return &signer{t: t, c: c, ca: ca, key: key}
}

func encodePEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// run signs requests until ctx ends.
func (s *signer) run(ctx context.Context) {
	api := s.c.client().CertificatesV1beta1().PodCertificateRequests(metav1.NamespaceDefault)
	for s.c.poll(func(ctx context.Context) bool {
		list, err := api.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		for i := range list.Items {
			if request := &list.Items[i]; request.Spec.SignerName == signerName && len(request.Status.Conditions) == 0 {
				s.sign(request)
				_, err = api.UpdateStatus(ctx, request, metav1.UpdateOptions{})
			}
		}
		return err == nil && len(list.Items) > 0
	}) == nil && ctx.Err() == nil {
		return
	}
}

func (s *signer) sign(request *certificatesv1beta1.PodCertificateRequest) {
	csr, err := x509.ParseCertificateRequest(request.Spec.StubPKCS10Request)
	require.NoError(s.t, err)
	require.NoError(s.t, csr.CheckSignature())
	s.serial++
	now := time.Now().Truncate(time.Second)
	from, refresh, until := metav1.NewTime(now.Add(-time.Minute)), metav1.NewTime(now.Add(time.Hour)), metav1.NewTime(now.Add(2*time.Hour))
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(s.serial), Subject: pkix.Name{CommonName: request.Spec.PodName}, NotBefore: from.Time, NotAfter: until.Time,
		KeyUsage: x509.KeyUsageDigitalSignature,
	}, s.ca, csr.PublicKey, s.key)
	require.NoError(s.t, err)
	request.Status = certificatesv1beta1.PodCertificateRequestStatus{
		CertificateChain: encodePEM(der), NotBefore: &from, BeginRefreshAt: &refresh, NotAfter: &until,
		Conditions: []metav1.Condition{{
			Type: certificatesv1beta1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Signed",
			LastTransitionTime: metav1.NewTime(now),
		}},
	}
}

// TestIssuers mounts trust anchors and a certificate in a Pod, with an API server that has their objects.
func TestIssuers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync", "--feature-gates", "ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true",
		"--runtime-config", "certificates.k8s.io/v1beta1/clustertrustbundles=true,certificates.k8s.io/v1beta1/podcertificaterequests=true")
	importShell(t, c)
	s := newSigner(t, c)
	bundle := func(name string) string {
		text, err := json.Marshal(map[string]any{
			"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
			"metadata": map[string]any{"name": "example.test:signer:" + name, "labels": map[string]string{"live": "yes"}},
			"spec":     map[string]any{"signerName": signerName, "trustBundle": encodePEM(s.ca.Raw)},
		})
		require.NoError(t, err)
		return string(text)
	}
	c.apply(bundle("one"))
	ctx, cancel := context.WithCancel(t.Context())
	signed := make(chan struct{})
	go func() { defer close(signed); s.run(ctx) }()
	defer func() { cancel(); <-signed }()
	c.apply(podManifest("certified", shell("cat /issued/anchors.pem /issued/bundle.pem; exec sleep 1000000", `"volumeMounts": [
		{"name": "issued", "mountPath": "/issued"}]`), `"volumes": [{"name": "issued", "projected": {"sources": [
		{"clusterTrustBundle": {"signerName": "`+signerName+`", "labelSelector": {"matchLabels": {"live": "yes"}}, "path": "anchors.pem"}},
		{"podCertificate": {"signerName": "`+signerName+`", "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem"}}]}}]`))
	c.waitPod("name=certified", "running", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
	anchors := c.mustRun("kubectl", "exec", "certified", "--", "/bin/busybox", "cat", "/issued/anchors.pem")
	require.Equal(t, encodePEM(s.ca.Raw), anchors)
	credentials := []byte(c.mustRun("kubectl", "exec", "certified", "--", "/bin/busybox", "cat", "/issued/bundle.pem"))
	block, rest := pem.Decode(credentials)
	require.NotNil(t, block)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	certificates, err := cert.ParseCertsPEM(rest)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM([]byte(anchors)))
	_, err = certificates[0].Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	require.NoError(t, err)
	require.Equal(t, "certified", certificates[0].Subject.CommonName)
	private, ok := key.(*ecdsa.PrivateKey)
	require.True(t, ok, "%T", key)
	require.True(t, private.PublicKey.Equal(certificates[0].PublicKey))

	// The anchors follow their object; a Pod whose bundle does not exist waits, and one with an optional bundle does not.
	other := newSigner(t, c)
	s.ca = other.ca
	c.apply(bundle("one"))
	require.NoError(t, c.poll(func(context.Context) bool {
		text, err := c.run("kubectl", "exec", "certified", "--", "/bin/busybox", "cat", "/issued/anchors.pem")
		return err == nil && text == encodePEM(other.ca.Raw)
	}))
	missing := func(name, more string) string {
		return podManifest(name, shell("exec sleep 1000000", `"volumeMounts": [{"name": "none", "mountPath": "/none"}]`), `"volumes": [
			{"name": "none", "projected": {"sources": [{"clusterTrustBundle": {"name": "none", "path": "none.pem"`+more+`}}]}}]`)
	}
	c.apply(missing("optional", `, "optional": true`))
	c.waitPod("name=optional", "ready", isReady)
	c.apply(missing("required", ""))
	c.waitEvents("default", "required", "ClusterTrustBundle")
	c.mustRun("kubectl", "delete", "pods", "--all", "--grace-period=0", "--timeout=2m")
}
