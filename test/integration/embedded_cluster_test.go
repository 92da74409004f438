//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	fakecloud "k8s.io/cloud-provider/fake"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/server"
)

// namingCloud is a cloud with a name of its own for the machine.
type namingCloud struct {
	*fakecloud.Cloud
	name string
}

// Instances implements cloudprovider.Interface.
func (c namingCloud) Instances() (cloudprovider.Instances, bool) { return c, true }

// CurrentNodeName implements cloudprovider.Instances.
func (c namingCloud) CurrentNodeName(context.Context, string) (types.NodeName, error) {
	return types.NodeName(c.name), nil
}

// countedEvents counts the requests for events, which go to the API server.
type countedEvents struct {
	typedcorev1.EventsGetter
	requests atomic.Int32
}

// Events implements typedcorev1.EventsGetter.
func (e *countedEvents) Events(namespace string) typedcorev1.EventInterface {
	e.requests.Add(1)
	return e.EventsGetter.Events(namespace)
}

// brokenNetwork is a network plugin that works when it is repaired.
type brokenNetwork struct{ repaired atomic.Bool }

var _ network.NetworkPlugin = (*brokenNetwork)(nil)

// Name implements network.NetworkPlugin.
func (*brokenNetwork) Name() string { return "wires" }

// Status implements network.NetworkPlugin.
func (b *brokenNetwork) Status() error {
	if b.repaired.Load() {
		return nil
	}
	return errors.New("the cable is cut")
}

// TestEmbeddedInCluster runs a kubelet of a caller as a node of a cluster: the cloud names and describes the Node, a network
// plugin keeps it from being ready, events go where the caller wants them, and the API server decides who may use the node's API.
func TestEmbeddedInCluster(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	client, plugin := c.client(), &brokenNetwork{}
	node := newTestNode(t, t.TempDir())
	name, host, port := node.name+".cloud", node.runtime.Gateway.String(), freePort(t)
	certFile, keyFile, web := writeServingCert(t, host)
	events := &countedEvents{EventsGetter: client.CoreV1()}
	e := newEmbedded(t, node, func(_ *kubeletconfig.KubeletConfiguration, deps *kubelet.KubeletDeps) {
		external, err := kubernetes.NewForConfig(c.admin())
		require.NoError(t, err)
		deps.ExternalKubeClient, deps.Recorder, deps.EventClient, deps.PodConfig = external, nil, events, nil
		deps.Options = []kubelet.Option{kubelet.WithRootDir(node.root()), kubelet.WithContainerLogsDir(node.links()), kubelet.WithLogger(slog.New(slog.NewTextHandler(node.log, nil)))}
		deps.NetworkPlugins = []network.NetworkPlugin{plugin}
		deps.TLSOptions = &server.TLSOptions{CertFile: certFile, KeyFile: keyFile}
		cloud := &fakecloud.Cloud{
			EnableInstancesV2: true, ProviderID: map[types.NodeName]string{types.NodeName(name): "fake://machine-1"},
			AdditionalLabels: map[string]string{"rack": "7"},
			Addresses:        []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}},
		}
		cloud.Zone = cloudprovider.Zone{FailureDomain: "zone-a", Region: "region-b"}
		deps.Cloud = namingCloud{cloud, name}
	})
	e.BirthCry()
	defer e.run()()
	go e.ListenAndServe(net.ParseIP(host), uint(port), nil, nil, true) // ends with the kubelet

	var found *corev1.Node
	waitNode := func(what string, ok func(*corev1.Node) bool) {
		require.NoError(t, retryUntil(t.Context(), func() (err error) {
			if found, err = client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err == nil && !ok(found) {
				err = fmt.Errorf("node is not %s: %+v", what, found.Status)
			}
			return err
		}, nil))
	}
	ready := func(status corev1.ConditionStatus, message string) func(*corev1.Node) bool {
		return func(node *corev1.Node) bool {
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady {
					return condition.Status == status && (message == "" || condition.Message == message)
				}
			}
			return false
		}
	}
	waitNode("registered and not ready", ready(corev1.ConditionFalse, `network plugin "wires": the cable is cut`))
	require.Equal(t, "fake://machine-1", found.Spec.ProviderID)
	hostname := e.GetHostname()
	require.NotEqual(t, name, hostname, "the hostname stays the machine's")
	for label, want := range map[string]string{
		"rack": "7", corev1.LabelTopologyZone: "zone-a", corev1.LabelTopologyRegion: "region-b", corev1.LabelHostname: hostname,
	} {
		require.Equal(t, want, found.Labels[label], label)
	}
	require.Equal(t, []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: host}, {Type: corev1.NodeHostName, Address: hostname},
	}, found.Status.Addresses)
	plugin.repaired.Store(true)
	waitNode("ready, with its port", func(node *corev1.Node) bool {
		return ready(corev1.ConditionTrue, "")(node) && node.Status.DaemonEndpoints.KubeletEndpoint.Port == int32(port)
	})
	c.waitEvents("default", name, "Starting kubelet.")
	require.Positive(t, events.requests.Load())

	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "groups", "annotations": {"pv.beta.kubernetes.io/gid": "4711"}},
		"spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "hostPath": {"path": "/tmp"}}}`)
	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "groups"}, "spec": {
		"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "volumeName": "groups", "resources": {"requests": {"storage": "1Mi"}}}}`)
	c.apply(podManifest("app", shell("echo said; exec /bin/busybox sleep 1000000", `"volumeMounts": [{"name": "data", "mountPath": "/data"}]`),
		fmt.Sprintf(`"nodeName": %q, "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "groups"}}]`, name)))
	pod := c.waitPod("name=app", "ready", isReady)
	require.Equal(t, []int64{4711}, e.GetExtraSupplementalGroupsForPod(pod))
	c.waitEvents("default", "app", "Container started")
	out, err := e.RunInContainer("app_default", pod.UID, "main", []string{"/bin/busybox", "id", "-G"})
	require.NoError(t, err)
	require.Contains(t, string(out), "4711")
	checkDelegatedAuth(t, c, web, fmt.Sprintf("https://%s:%d/containerLogs/default/app/main", host, port))
	c.mustRun("kubectl", "delete", "pod", "app", "--grace-period=0", "--timeout=2m")
}

// checkDelegatedAuth reads a container's log with tokens: the API server knows whose they are and what those may do.
func checkDelegatedAuth(t *testing.T, c *cluster, client *http.Client, url string) {
	t.Helper()
	for _, user := range []string{"reader", "stranger"} {
		c.mustRun("kubectl", "create", "serviceaccount", user)
	}
	c.mustRun("kubectl", "create", "clusterrolebinding", "reader", "--clusterrole", "cluster-admin", "--serviceaccount", "default:reader")
	get := func(user string) (code int, body string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		require.NoError(t, err)
		token := "wrong"
		if user != "" {
			token = strings.TrimSpace(c.mustRun("kubectl", "create", "token", user))
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(content)
	}
	code, body := get("reader")
	require.Equal(t, http.StatusOK, code, body)
	require.Equal(t, "said\n", body)
	code, body = get("stranger")
	require.Equal(t, http.StatusForbidden, code, body)
	code, body = get("")
	require.Equal(t, http.StatusUnauthorized, code, body)
}
