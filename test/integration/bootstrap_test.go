//go:build integration

package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/up"
)

const (
	tokenID     = "abcdef"
	tokenSecret = "0123456789abcdef"
	joiners     = "system:bootstrappers:test"
)

// TestJoinByBootstrapToken joins a node with nothing but a bootstrap token: the cluster signs its client certificate and,
// by the approver of `berth up`, its serving certificate. The next start does not need the token.
func TestJoinByBootstrapToken(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	client := c.client()
	a := newTestNode(t, t.TempDir())
	a.makeBridge()
	allowJoining(t, client)
	bootstrap, kubeconfig := filepath.Join(a.dir, "bootstrap.kubeconfig"), filepath.Join(a.dir, "node.kubeconfig")
	c.writeToken(bootstrap, tokenID+"."+tokenSecret)
	port := freePort(t)

	stop := a.join(c, kubeconfig, bootstrap, port)
	a.nodeReady(client)
	written, err := os.ReadFile(kubeconfig)
	require.NoError(t, err)
	require.NotContains(t, string(written), tokenSecret)
	first := servedCertificate(t, c, a, port)
	require.Equal(t, "system:node:"+a.name, first.Subject.CommonName)
	runOn(t, c, a, "joined")
	scraped := scrape(t, c, a, port)
	for _, name := range []string{"certificate_manager_client", "server"} {
		require.Regexp(t, `(?m)^kubelet_`+name+`_expiration_renew_errors \d+$`, scraped)
	}

	proxy := filepath.Join(up.MemberDir(filepath.Join(a.root(), "berth")), "kube-proxy.kubeconfig")
	require.NoError(t, c.poll(func(context.Context) bool { return exists(proxy) }), "a node that has not stored a certificate requests another one")
	stop()
	require.NoError(t, client.CoreV1().Secrets("kube-system").Delete(t.Context(), "bootstrap-token-"+tokenID, metav1.DeleteOptions{}))
	require.NoError(t, os.Remove(bootstrap))
	stop = a.join(c, kubeconfig, bootstrap, port)
	defer stop()
	runOn(t, c, a, "again")
	require.Equal(t, first.SerialNumber, servedCertificate(t, c, a, port).SerialNumber, "the certificate is reused")
	requests, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, requests.Items, 3, "for the client's certificate, the serving one, and that of the node's network")
}

// allowJoining creates the objects that allow joining, as an administrator or kubeadm does, and a token.
func allowJoining(t testing.TB, client kubernetes.Interface) {
	t.Helper()
	for name, role := range map[string]string{
		"join":    "system:node-bootstrapper",
		"approve": "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
	} {
		_, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "test-" + name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: joiners}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err := client.CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + tokenID}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": tokenID, "token-secret": tokenSecret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": joiners,
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// writeToken writes a kubeconfig that has the token and no other credential.
func (c *cluster) writeToken(path, token string) {
	c.t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(c.dataDir, "admin.kubeconfig"))
	require.NoError(c.t, err)
	current := config.Contexts[config.CurrentContext]
	config.AuthInfos[current.AuthInfo] = &clientcmdapi.AuthInfo{Token: token}
	require.NoError(c.t, clientcmd.WriteToFile(*config, path))
}

// join runs `berth node` until the returned function is called.
func (a *testNode) join(c *cluster, kubeconfig, bootstrap string, port int) (stop func()) {
	a.t.Helper()
	cmd := exec.Command(c.berth, "node", noEviction, "--kubeconfig", kubeconfig, "--bootstrap-kubeconfig", bootstrap,
		"--rotate-server-certificates", "--node-name", a.name, "--node-ip", a.address(), "--port", strconv.Itoa(port),
		"--healthz-port", "0", "--root-dir", a.root(), "--pod-logs-dir", a.logs(), "--cgroup-root", "/"+a.cgroup(),
		"--container-runtime-endpoint", "unix://"+a.runtime.Socket())
	cmd.Stdout, cmd.Stderr = a.log, a.log
	require.NoError(a.t, cmd.Start())
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			a.t.Errorf("berth node ended with %v", err)
		}
	}
	a.t.Cleanup(stop)
	return stop
}

// servedCertificate returns the certificate of the node's server, which the cluster's CA must have signed.
func servedCertificate(t testing.TB, c *cluster, a *testNode, port int) *x509.Certificate {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(c.dataDir, "pki", "ca.crt"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca))
	var served *x509.Certificate
	require.NoError(t, retryUntil(t.Context(), func() error {
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(a.address(), strconv.Itoa(port)))
		if err != nil {
			return err
		}
		defer conn.Close()
		served = conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
		return nil
	}, nil))
	return served
}

// scrape reads the metrics of the node whose server is at the port, as the cluster's administrator.
func scrape(t testing.TB, c *cluster, a *testNode, port int) string {
	return readNode(t, c, a, port, "/metrics")
}

// readNode reads a path of the node's server as the administrator.
func readNode(t testing.TB, c *cluster, a *testNode, port int, path string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dataDir, "admin.kubeconfig"))
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	return getBy(t, client, "https://"+net.JoinHostPort(a.address(), strconv.Itoa(port))+path)
}

// runOn runs a Pod on the node and reads its log through the API server, which reads it from the node.
func runOn(t testing.TB, c *cluster, a *testNode, name string) {
	t.Helper()
	c.apply(podManifest(name, shell("echo hello from "+name, ""),
		fmt.Sprintf(`"nodeName": %q, "restartPolicy": "Never"`, a.name)))
	pod := c.waitPod("name="+name, "finished", finished)
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase, pod.Status)
	require.Equal(t, "hello from "+name+"\n", c.mustRun("kubectl", "logs", name))
	c.mustRun("kubectl", "delete", "pod", name, "--timeout=2m")
}
