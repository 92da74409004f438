//go:build integration

package integration

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
)

// remoteKubeconfig writes the administrator's kubeconfig for another machine, which cannot use a loopback address.
func (c *cluster) remoteKubeconfig(path string) string {
	c.t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(c.dataDir, "admin.kubeconfig"))
	require.NoError(c.t, err)
	server := "https://" + net.JoinHostPort(c.gateway(), strconv.Itoa(c.port))
	config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server = server
	require.NoError(c.t, clientcmd.WriteToFile(*config, path))
	return path
}

// approve approves the node's request for a serving certificate, as the administrator who joined it does.
func (c *cluster) approve(node string) {
	c.t.Helper()
	api := c.client().CertificatesV1().CertificateSigningRequests()
	require.NoError(c.t, c.poll(func(ctx context.Context) bool {
		list, err := api.List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName})
		if err != nil {
			return false
		}
		for i := range list.Items {
			csr := &list.Items[i]
			if csr.Spec.Username != "system:node:"+node {
				continue
			}
			if len(csr.Status.Certificate) > 0 {
				return true
			}
			if len(csr.Status.Conditions) == 0 {
				csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
					Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Joined",
				}}
				_, _ = api.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}) // what fails is tried again
			}
		}
		return false
	}), "%s has no serving certificate", node)
}

// poll calls f until it returns true or waitTimeout has passed.
func (c *cluster) poll(f func(ctx context.Context) bool) error {
	return wait.PollUntilContextTimeout(c.t.Context(), 100*time.Millisecond, waitTimeout, true,
		func(ctx context.Context) (bool, error) { return f(ctx), nil })
}
