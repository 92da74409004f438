//go:build integration

package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeFollowsItsAddress gives a machine that joined without --node-ip another address, as a DHCP server does: its Node,
// its Pods, its server and the server's certificate follow.
func TestNodeFollowsItsAddress(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	m := newMachine(t, c, 1)
	m.boot()
	m.join()
	has := func(address string) func(*corev1.Node) bool {
		return func(node *corev1.Node) bool {
			for _, one := range node.Status.Addresses {
				if one.Type == corev1.NodeInternalIP {
					return one.Address == address
				}
			}
			return false
		}
	}
	// signed returns the addresses in the certificate that the node serves.
	signed := func(address string) string {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		connection, err := dialer.DialContext(ctx, "tcp", address+":10250")
		if err != nil {
			return err.Error()
		}
		defer connection.Close()
		return fmt.Sprint(connection.(*tls.Conn).ConnectionState().PeerCertificates[0].IPAddresses)
	}
	c.approve(m.name)
	c.waitNode(m.name, "ready", nodeReady)
	c.waitNode(m.name, "at its address", has(m.address))
	c.apply(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays", "labels": {"app": "stays"}}, "spec": {
		"nodeName": "` + m.name + `", "terminationGracePeriodSeconds": 0,
		"containers": [` + shell("echo hello; exec /bin/busybox sleep 3600", `"name": "main"`) + `]}}`)
	at := func(address string) func(*corev1.Pod) bool {
		return func(pod *corev1.Pod) bool { return isReady(pod) && pod.Status.HostIP == address }
	}
	started := c.waitPod("app=stays", "ready", at(m.address)).Status.ContainerStatuses[0].ContainerID
	require.NoError(t, c.poll(func(context.Context) bool { return signed(m.address) == "["+m.address+"]" }), "%s", signed(m.address))

	c.mustRun("kubectl", "delete", "csr", "--all")
	moved := strings.TrimSuffix(m.address, ".2") + ".77"
	router := strings.TrimSuffix(m.address, ".2") + ".1"
	for _, command := range []string{
		"-n " + m.link + " addr flush dev eth0",
		"-n " + m.link + " addr add " + moved + "/24 dev eth0",
		"-n " + m.link + " route add default via " + router,
		"route replace " + m.runtime.PodCIDR.String() + " via " + moved,
	} {
		m.ip(command)
	}
	c.waitNode(m.name, "at its other address", has(moved))
	pod := c.waitPod("app=stays", "at the node's other address", at(moved))
	require.Equal(t, started, pod.Status.ContainerStatuses[0].ContainerID)
	require.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
	require.NoError(t, c.poll(func(context.Context) bool { return signed(moved) == "["+moved+"]" }), "%s", signed(moved))
	c.waitLog("stays", "hello\n") // the node's server is where the Node says
	require.NoError(t, c.poll(func(ctx context.Context) bool {
		node, err := c.client().CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
		return err == nil && nodeReady(node)
	}))
}
