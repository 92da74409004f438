//go:build integration

package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/util/cert"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/server"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// wrapped is a Kubelet that a caller's builder has made.
type wrapped struct {
	*kubelet.Kubelet
	started atomic.Bool
}

// BirthCry implements kubelet.KubeletBootstrap.
func (w *wrapped) BirthCry() { w.started.Store(true) }

// TestEmbeddedRunKubelet runs the Kubelet of a caller's builder with Pods of two sources. What an earlier kubelet has left is
// stopped as soon as both sources have said which Pods they have.
func TestEmbeddedRunKubelet(t *testing.T) {
	node := newTestNode(t, t.TempDir())
	earlier := newEmbedded(t, node, nil)
	stop := earlier.run()
	left := shell("exec /bin/busybox sleep 1000000", "")
	earlier.set(embeddedPod(t, "orphan", left, ""), embeddedPod(t, "kept", left, ""))
	kept := earlier.waitStatus("kept", "ready", isReady)
	earlier.waitStatus("orphan", "ready", isReady)
	stop()

	c, deps := embeddedConfig(node)
	c.EnableServer, c.ReadOnlyPort, c.Address = new(bool), int32(freePort(t)), "127.0.0.1"
	const second = "second"
	deps.PodConfig.Register(second)
	made := make(chan *wrapped, 1)
	deps.Builder = func(c *kubeletconfig.KubeletConfiguration, deps *kubelet.KubeletDeps, standalone bool) (kubelet.KubeletBootstrap, error) {
		k, err := kubelet.NewMainKubelet(c, deps, standalone)
		if err != nil {
			return nil, err
		}
		w := &wrapped{Kubelet: k}
		made <- w
		return w, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	var ended error
	running.Go(func() { ended = kubelet.RunKubelet(ctx, c, deps, true, false) })
	k := <-made
	e := &embedded{Kubelet: k.Kubelet, t: t, node: node}
	send := func(source string, pods ...*corev1.Pod) {
		require.NoError(t, deps.PodConfig.Send(ctx, kubelettypes.PodUpdate{Op: kubelettypes.SET, Source: source, Pods: pods}))
	}
	send(kubelettypes.FileSource, embeddedPod(t, "kept", left, ""))
	again := e.waitStatus("kept", "ready", isReady)
	require.Equal(t, kept.Status.ContainerStatuses[0].ContainerID, again.Status.ContainerStatuses[0].ContainerID)
	require.ElementsMatch(t, []string{"kept", "orphan"}, runningPods(t, e), "the second source may have the orphan")
	require.False(t, deps.PodConfig.SeenAllSources())
	send(second, embeddedPod(t, "other", left, ""))
	e.waitStatus("other", "ready", isReady)
	require.NoError(t, retryUntil(t.Context(), func() error {
		if names := runningPods(t, e); len(names) != 2 {
			return fmt.Errorf("Pods run that no source has: %v", names)
		}
		return nil
	}, nil))
	require.True(t, k.started.Load(), "the builder's Kubelet is the one that runs")
	require.NoError(t, retryUntil(t.Context(), func() error {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", c.ReadOnlyPort))
		if err != nil {
			return err
		}
		return response.Body.Close()
	}, nil))
	cancel()
	running.Wait()
	require.NoError(t, ended)

	c, deps = embeddedConfig(node)
	deps.Builder = func(*kubeletconfig.KubeletConfiguration, *kubelet.KubeletDeps, bool) (kubelet.KubeletBootstrap, error) {
		return nil, errors.New("no parts")
	}
	require.ErrorContains(t, kubelet.RunKubelet(t.Context(), c, deps, true, false), "no parts")
}

func runningPods(t *testing.T, e *embedded) (names []string) {
	t.Helper()
	pods, err := e.GetRunningPods()
	require.NoError(t, err)
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

// ownAuth authenticates the names of users as passwords, and lets "reader" read. Every request is one for the resource "things".
type ownAuth struct{}

var _ server.AuthInterface = ownAuth{}

// AuthenticateRequest implements authenticator.Request.
func (ownAuth) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	name, password, ok := r.BasicAuth()
	if !ok || name != password {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, true, nil
}

// GetRequestAttributes implements server.RequestAttributesGetter.
func (ownAuth) GetRequestAttributes(_ context.Context, u user.Info, _ *http.Request) []authorizer.Attributes {
	return []authorizer.Attributes{authorizer.AttributesRecord{User: u, Verb: "get", Resource: "things"}}
}

// Authorize implements authorizer.Authorizer.
func (ownAuth) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "reader" && a.GetResource() == "things" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionDeny, "only the reader may", nil
}

// writeServingCert writes a certificate for an address, and returns its files and a client that trusts it.
func writeServingCert(t *testing.T, host string) (certFile, keyFile string, client *http.Client) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	require.NoError(t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(certificate))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(transport.CloseIdleConnections)
	return certFile, keyFile, &http.Client{Transport: transport}
}

// TestEmbeddedServer serves the node's API with the caller's certificate, and with the caller's say in who may use it.
func TestEmbeddedServer(t *testing.T) {
	certFile, keyFile, client := writeServingCert(t, "127.0.0.1")
	e := newEmbedded(t, newTestNode(t, t.TempDir()), func(_ *kubeletconfig.KubeletConfiguration, deps *kubelet.KubeletDeps) {
		deps.Auth = ownAuth{}
		deps.TLSOptions = &server.TLSOptions{
			Config: &tls.Config{MinVersion: tls.VersionTLS13}, CertFile: certFile, KeyFile: keyFile,
		}
	})
	defer e.run()()
	e.set(embeddedPod(t, "app", shell("echo said; exec /bin/busybox sleep 1000000", ""), ""))
	e.waitStatus("app", "ready", isReady)
	port := freePort(t)
	go e.ListenAndServe(net.IPv4(127, 0, 0, 1), uint(port), nil, nil, true) // ends with the kubelet
	get := func(user, path string) (code int, body string, err error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", port, path), http.NoBody)
		if err != nil {
			return 0, "", err
		}
		if user != "" {
			request.SetBasicAuth(user, user)
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, "", err
		}
		defer response.Body.Close()
		require.Equal(t, uint16(tls.VersionTLS13), response.TLS.Version)
		content, err := io.ReadAll(response.Body)
		return response.StatusCode, string(content), err
	}
	var body string
	require.NoError(t, retryUntil(t.Context(), func() (err error) {
		_, body, err = get("reader", "/containerLogs/default/app/main")
		return err
	}, nil))
	require.Equal(t, "said\n", body)
	for user, want := range map[string]int{"": http.StatusUnauthorized, "other": http.StatusForbidden, "reader": http.StatusOK} {
		code, body, err := get(user, "/pods")
		require.NoError(t, err)
		require.Equal(t, want, code, body)
	}
	_, body, err := get("reader", "/metrics")
	require.NoError(t, err)
	for _, name := range []string{"kubelet_running_pods 1", `kubelet_desired_pods{static="true"} 1`, "kubelet_node_name{"} {
		require.Contains(t, body, name)
	}
	old := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}}}
	_, err = old.Get(fmt.Sprintf("https://127.0.0.1:%d/healthz", port)) //nolint:bodyclose // it is an error
	require.ErrorContains(t, err, "protocol version")
}

// TestEmbeddedPodWorkers hands requests to the workers of Pods with real containers.
func TestEmbeddedPodWorkers(t *testing.T) {
	e := newEmbedded(t, newTestNode(t, t.TempDir()), nil)
	defer e.run()()
	e.set()
	workers := e.PodWorkers()
	done := make(chan error, 1)
	request := func(kind kubelettypes.SyncPodType, pod *corev1.Pod, options *kubelet.KillPodOptions) error {
		workers.UpdatePod(&kubelet.UpdatePodOptions{
			Pod: pod, UpdateType: kind, KillPodOptions: options, OnCompleteFunc: func(err error) { done <- err },
		})
		return <-done
	}
	stays := embeddedPod(t, "stays", shell("exec /bin/busybox sleep 1000000", ""), "")
	require.ErrorContains(t, request(kubelettypes.SyncPodSync, stays, nil), "has no worker")
	require.NoError(t, request(kubelettypes.SyncPodCreate, stays, nil))
	e.waitStatus("stays", "ready", isReady)
	require.NoError(t, request(kubelettypes.SyncPodSync, stays, nil))

	missing := embeddedPod(t, "missing", shell("exit 0", ""), "")
	missing.Spec.Containers[0].Image = "example.test/none:v1"
	err := request(kubelettypes.SyncPodCreate, missing, nil)
	require.ErrorContains(t, err, "ErrImageNeverPull")
	require.ErrorContains(t, err, "example.test/none:v1")

	var seen *container.PodStatus
	grace := int64(0)
	require.NoError(t, request(kubelettypes.SyncPodKill, stays, &kubelet.KillPodOptions{
		PodTerminationGracePeriodSecondsOverride: &grace,
		PodStatusFunc: func(_ *corev1.Pod, status *container.PodStatus) corev1.PodStatus {
			seen = status
			return corev1.PodStatus{Phase: corev1.PodFailed, Reason: "TooLoud", Message: "it was too loud"}
		},
	}))
	require.Len(t, seen.Containers, 1, "the state in the runtime")
	require.Equal(t, container.StateRunning, seen.Containers[0].State)
	require.Empty(t, runningPods(t, e), "it has ended when the function is called")
	pod := e.waitStatus("stays", "failed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	require.Equal(t, []string{"TooLoud", "it was too loud"}, []string{pod.Status.Reason, pod.Status.Message})

	workers.ForgetNonExistingPodWorkers(map[types.UID]struct{}{missing.UID: {}})
	gone := func(name string) {
		require.NoError(t, retryUntil(t.Context(), func() error {
			if _, found := e.GetPodByName("default", name); found {
				return fmt.Errorf("Pod %s is still there", name)
			}
			return nil
		}, nil))
	}
	gone("stays")
	_, found := e.GetPodByName("default", "missing")
	require.True(t, found)
	workers.ForgetWorker(missing.UID)
	gone("missing")
}
