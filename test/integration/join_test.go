//go:build integration

package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// credentials are a node's: a kubeconfig with its identity, and its server's certificate.
type credentials struct{ kubeconfig, cert, key string }

// credentials has the cluster sign a node's certificates, as an administrator does who joins a machine.
func (c *cluster) credentials(node, address, dir string) credentials {
	c.t.Helper()
	client := c.sign(node, certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth, nil)
	server := c.sign(node, certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth, net.ParseIP(address))
	config, err := clientcmd.LoadFromFile(filepath.Join(c.dataDir, "admin.kubeconfig"))
	require.NoError(c.t, err)
	context := config.Contexts[config.CurrentContext]
	config.AuthInfos[context.AuthInfo] = &clientcmdapi.AuthInfo{
		ClientCertificateData: client.cert, ClientKeyData: client.key,
	}
	// The first address is loopback, which is the machine's own there.
	config.Clusters[context.Cluster].Server = "https://" + net.JoinHostPort(fmt.Sprintf("10.%d.0.1", c.network), strconv.Itoa(c.port))
	files := credentials{
		kubeconfig: filepath.Join(dir, "node.kubeconfig"), cert: filepath.Join(dir, "node.crt"), key: filepath.Join(dir, "node.key"),
	}
	require.NoError(c.t, clientcmd.WriteToFile(*config, files.kubeconfig))
	require.NoError(c.t, os.WriteFile(files.cert, server.cert, 0o600))
	require.NoError(c.t, os.WriteFile(files.key, server.key, 0o600))
	return files
}

type signed struct{ cert, key []byte }

// sign asks for a certificate of the node, approves it, and waits for it.
func (c *cluster) sign(node, signer string, usage certificatesv1.KeyUsage, address net.IP) signed {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c.t, err)
	template := &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:node:" + node, Organization: []string{"system:nodes"},
	}}
	if address != nil {
		template.IPAddresses, template.DNSNames = []net.IP{address}, []string{node}
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	require.NoError(c.t, err)
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-"}}
	csr.Spec = certificatesv1.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
		SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
	}
	api := c.client().CertificatesV1().CertificateSigningRequests()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	// A node's server certificate has to be asked for by the node: its identity is impersonated.
	csr, err = c.as("system:node:"+node, "system:nodes").CertificatesV1().CertificateSigningRequests().
		Create(ctx, csr, metav1.CreateOptions{})
	require.NoError(c.t, err)
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	})
	_, err = api.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	require.NoError(c.t, err)
	require.NoError(c.t, c.poll(func(ctx context.Context) bool {
		got, err := api.Get(ctx, csr.Name, metav1.GetOptions{})
		if err == nil {
			csr = got
		}
		return len(csr.Status.Certificate) > 0
	}), "no certificate was signed: %v", csr.Status.Conditions)
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	require.NoError(c.t, err)
	return signed{cert: csr.Status.Certificate, key: encoded}
}

// poll asks until f says yes or patience ends.
func (c *cluster) poll(f func(ctx context.Context) bool) error {
	return wait.PollUntilContextTimeout(c.t.Context(), 100*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) { return f(ctx), nil })
}
