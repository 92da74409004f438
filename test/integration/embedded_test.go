//go:build integration

package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/config"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// embedded is a kubelet that this process has made with package kubelet, on the containerd of a testNode. It is standalone.
type embedded struct {
	*kubelet.Kubelet
	t       *testing.T
	node    *testNode
	updates chan kubelettypes.PodUpdate
	events  *record.FakeRecorder
}

// embeddedConfig returns the configuration of a kubelet that uses nothing of the machine's own one, and its dependencies.
func embeddedConfig(node *testNode) (*kubeletconfig.KubeletConfiguration, *kubelet.KubeletDeps) {
	pods := config.NewPodConfig()
	pods.Register(kubelettypes.FileSource)
	return &kubeletconfig.KubeletConfiguration{
			PodLogsDir: node.logs(), CgroupRoot: "/" + node.cgroup(), EnforceNodeAllocatable: []string{"none"},
			ContainerRuntimeEndpoint: "unix://" + node.runtime.Socket(), FailCgroupV1: new(bool), FailSwapOn: new(bool),
			MakeIPTablesUtilChains: new(bool), ClusterDomain: "cluster.local",
		}, &kubelet.KubeletDeps{
			PodConfig: pods, Recorder: record.NewFakeRecorder(1000), Options: []kubelet.Option{
				kubelet.WithRootDir(node.root()), kubelet.WithContainerLogsDir(node.links()), kubelet.WithNode(node.name, net.IP(node.runtime.Gateway.AsSlice())),
				kubelet.WithLogger(slog.New(slog.NewTextHandler(node.log, nil))),
			},
		}
}

// newEmbedded makes a kubelet. change may be nil.
func newEmbedded(t *testing.T, node *testNode, change func(*kubeletconfig.KubeletConfiguration, *kubelet.KubeletDeps)) *embedded {
	t.Helper()
	c, deps := embeddedConfig(node)
	events := record.NewFakeRecorder(1000)
	deps.Recorder = events
	if change != nil {
		change(c, deps)
	}
	k, err := kubelet.NewMainKubelet(c, deps, deps.KubeClient == nil && deps.ExternalKubeClient == nil)
	require.NoError(t, err)
	return &embedded{Kubelet: k, t: t, node: node, updates: make(chan kubelettypes.PodUpdate), events: events}
}

// run runs the kubelet until the returned function is called, or the test ends.
func (e *embedded) run() (stop func()) {
	var running sync.WaitGroup
	running.Go(func() { e.Run(e.updates) })
	stop = sync.OnceFunc(func() {
		close(e.updates)
		running.Wait()
		require.NoError(e.t, e.Close())
	})
	e.t.Cleanup(stop)
	return stop
}

// set makes the node's Pods those given.
func (e *embedded) set(pods ...*corev1.Pod) {
	e.updates <- kubelettypes.PodUpdate{Op: kubelettypes.SET, Source: kubelettypes.FileSource, Pods: pods}
}

// embeddedPod returns a Pod as a source of Pods delivers it, with podManifest's parameters.
func embeddedPod(t *testing.T, name, container, more string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	require.NoError(t, json.Unmarshal([]byte(podManifest(name, container, more)), pod))
	pod.Namespace, pod.UID = "default", types.UID("uid-of-"+name)
	pod.Spec.DNSPolicy = corev1.DNSDefault
	return pod
}

// waitStatus waits until the status of the Pod is as wanted, and returns the Pod.
func (e *embedded) waitStatus(name, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	e.t.Helper()
	var pod *corev1.Pod
	require.NoError(e.t, retryUntil(e.t.Context(), func() error {
		found, ok := e.GetPodByName("default", name)
		if !ok || !wanted(found) {
			return fmt.Errorf("Pod %s is not %s: %+v", name, what, found)
		}
		pod = found
		return nil
	}, nil))
	return pod
}

// sink is a stream that keeps what is written to it.
type sink struct{ bytes.Buffer }

// Close implements io.Closer.
func (*sink) Close() error { return nil }

// TestEmbeddedKubelet calls the methods of a Kubelet on a Pod with real containers.
func TestEmbeddedKubelet(t *testing.T) {
	e := newEmbedded(t, newTestNode(t, t.TempDir()), nil)
	e.BirthCry()
	require.Equal(t, "Normal Starting Starting kubelet.", <-e.events.Events)
	defer e.run()()
	script := `echo to-log; echo to-stderr >&2; mkdir /www; echo page > /www/index.html
/bin/busybox httpd -h /www -p 8080; while read line; do echo "got $line"; done; exec sleep 1000000`
	e.set(embeddedPod(t, "app", shell(script, `"stdin": true, "env": [{"name": "COLOR", "value": "blue"}],
		"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]`),
		`"restartPolicy": "Always", "hostname": "web", "subdomain": "sub", "volumes": [{"name": "scratch", "emptyDir": {}}]`))
	pod := e.waitStatus("app", "ready", isReady)
	require.WithinDuration(t, time.Now(), e.LatestLoopEntryTime(), time.Minute)
	t.Run("streams", func(t *testing.T) { checkEmbeddedStreams(t, e, pod) })
	t.Run("port forward", func(t *testing.T) { checkEmbeddedPortForward(t, e, pod) })
	t.Run("logs", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		require.NoError(t, e.GetKubeletContainerLogs("app_default", "main", nil, &stdout, &stderr))
		require.Contains(t, stdout.String(), "to-log\n")
		require.Equal(t, "to-stderr\n", stderr.String())
		require.ErrorContains(t, e.GetKubeletContainerLogs("none_default", "main", nil, io.Discard, io.Discard), "not found")
	})
	t.Run("options", func(t *testing.T) { checkEmbeddedOptions(t, e, pod) })
	t.Run("usage", func(t *testing.T) { checkEmbeddedUsage(t, e) })
	t.Run("handlers", func(t *testing.T) { checkEmbeddedHandlers(t, e) })
	t.Run("node's logs", func(t *testing.T) {
		response := httptest.NewRecorder()
		e.ServeLogs(response, httptest.NewRequest(http.MethodGet, "/logs/", http.NoBody))
		require.Equal(t, http.StatusOK, response.Code)
		require.Contains(t, response.Body.String(), "<a href=")
	})
}

func checkEmbeddedStreams(t *testing.T, e *embedded, pod *corev1.Pod) {
	out, err := e.RunInContainer("app_default", pod.UID, "main", []string{"/bin/busybox", "sh", "-c", "echo $COLOR; exit 3"})
	require.ErrorContains(t, err, "exited with 3")
	require.Equal(t, "blue\n", string(out))

	var stdout, stderr sink
	err = e.ExecInContainer("app_default", pod.UID, "main", []string{"/bin/busybox", "sh", "-c", "/bin/busybox cat; echo bad >&2; exit 4"},
		strings.NewReader("from stdin"), &stdout, &stderr, false, nil, time.Minute)
	var exit exec.CodeExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 4, exit.Code)
	require.Equal(t, "from stdin", stdout.String())
	require.Equal(t, "bad\n", stderr.String())
	err = e.ExecInContainer("app_default", pod.UID, "main", []string{"/bin/busybox", "sleep", "1000"}, nil, &stdout, &stderr, false, nil,
		100*time.Millisecond)
	require.Error(t, err, "the timeout")
	require.ErrorContains(t, e.ExecInContainer("app_default", "another", "main", nil, nil, &stdout, nil, false, nil, 0), "not found")

	// The streams of the container's own process: it repeats what it reads.
	input, write := io.Pipe()
	read, output := io.Pipe()
	attached := make(chan error, 1)
	go func() { attached <- e.AttachContainer("app_default", pod.UID, "main", input, output, nil, false, nil) }()
	_, err = io.WriteString(write, "hello\n")
	require.NoError(t, err)
	line := make([]byte, len("got hello\n"))
	_, err = io.ReadFull(read, line)
	require.NoError(t, err)
	require.Equal(t, "got hello\n", string(line))
	require.NoError(t, write.Close())
	require.NoError(t, read.Close())

	for name, get := range map[string]func() (fmt.Stringer, error){
		"exec": func() (fmt.Stringer, error) {
			return e.GetExec("app_default", pod.UID, "main", []string{"x"}, remotecommand.Options{Stdout: true})
		},
		"attach": func() (fmt.Stringer, error) {
			return e.GetAttach("app_default", pod.UID, "main", remotecommand.Options{Stdout: true})
		},
		"portforward": func() (fmt.Stringer, error) {
			return e.GetPortForward("app", "default", pod.UID, portforward.V4Options{Ports: []int32{80}})
		},
	} {
		location, err := get()
		require.NoError(t, err)
		require.Contains(t, location.String(), "/"+name+"/", "a token of the runtime's stream server")
	}
}

func checkEmbeddedPortForward(t *testing.T, e *embedded, pod *corev1.Pod) {
	near, far := net.Pipe()
	forwarded := make(chan error, 1)
	go func() { forwarded <- e.PortForward("app_default", pod.UID, 8080, far) }()
	_, err := io.WriteString(near, "GET / HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	response, err := io.ReadAll(near)
	require.NoError(t, err)
	require.NoError(t, <-forwarded)
	require.Contains(t, string(response), "page\n")

	near, far = net.Pipe()
	go func() { forwarded <- e.PortForward("app_default", pod.UID, 9, far) }()
	_, err = io.ReadAll(near)
	require.NoError(t, err)
	require.ErrorContains(t, <-forwarded, "refused", "nothing listens there")
}

func checkEmbeddedOptions(t *testing.T, e *embedded, pod *corev1.Pod) {
	options, err := e.GenerateRunContainerOptions(pod, &pod.Spec.Containers[0], pod.Status.PodIP)
	require.NoError(t, err)
	require.Contains(t, options.Envs, &runtimeapi.KeyValue{Key: "COLOR", Value: []byte("blue")})
	require.Equal(t, "web", options.Hostname)
	require.Contains(t, options.CgroupParent, e.node.cgroup())
	volumes, found := e.ListVolumesForPod(pod.UID)
	require.True(t, found)
	mounts := map[string]string{}
	for _, mount := range options.Mounts {
		mounts[mount.ContainerPath] = mount.HostPath
	}
	require.Equal(t, volumes["scratch"].GetPath(), mounts["/scratch"])
	require.DirExists(t, mounts["/scratch"])
	require.Contains(t, mounts, "/etc/hosts")
	_, err = e.GenerateRunContainerOptions(nil, nil, "")
	require.ErrorContains(t, err, "required")

	hostname, domain, err := e.GeneratePodHostNameAndDomain(pod)
	require.NoError(t, err)
	require.Equal(t, []string{"web", "sub.default.svc.cluster.local"}, []string{hostname, domain})
	out, err := e.RunInContainer("app_default", pod.UID, "main", []string{"/bin/busybox", "hostname", "-f"})
	require.NoError(t, err)
	require.Equal(t, "web.sub.default.svc.cluster.local\n", string(out), "the container has what the method says")
	require.Empty(t, e.GetExtraSupplementalGroupsForPod(pod), "it has no PersistentVolume")
	_, found = e.ListVolumesForPod("another")
	require.False(t, found)
}

func checkEmbeddedUsage(t *testing.T, e *embedded) {
	pods, err := e.GetRunningPods()
	require.NoError(t, err)
	require.Len(t, pods, 1)
	require.Equal(t, "app", pods[0].Name)
	require.Equal(t, shellImage, pods[0].Spec.Containers[0].Image)
	one, err := e.GetContainerInfo("app_default", "uid-of-app", "main", &v1.ContainerInfoRequest{})
	require.NoError(t, err)
	require.Positive(t, one.Stats[0].Memory.Usage)
	require.Positive(t, one.Stats[0].Cpu.Usage.Total)
	_, err = e.GetContainerInfo("app_default", "uid-of-app", "none", nil)
	require.ErrorContains(t, err, "not running")
	below, err := e.GetContainerInfoV2("/"+e.node.cgroup(), v2.RequestOptions{Recursive: true})
	require.NoError(t, err)
	require.Contains(t, below, one.Name)
	raw, err := e.GetRawContainerInfo("/"+e.node.cgroup(), nil, true)
	require.NoError(t, err)
	require.Contains(t, raw, one.Name)
	raw, err = e.GetRawContainerInfo(one.Name, nil, false)
	require.NoError(t, err)
	require.Len(t, raw, 1)

	images, err := e.ImagesFsInfo()
	require.NoError(t, err)
	require.Positive(t, images.Capacity)
	root, err := e.RootFsInfo()
	require.NoError(t, err)
	dedicated, err := e.HasDedicatedImageFs()
	require.NoError(t, err)
	require.Equal(t, images.Device != root.Device, dedicated)
	version, err := e.GetRuntime().Version(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, "containerd", version.RuntimeName)
}

// checkEmbeddedHandlers hands changes of Pods to the kubelet without a source.
func checkEmbeddedHandlers(t *testing.T, e *embedded) {
	pod := embeddedPod(t, "handled", shell("trap 'exit 0' TERM; while :; do /bin/busybox sleep 0.1; done", ""), "")
	orphan := filepath.Join(e.node.root(), "pods", "uid-of-orphan")
	require.NoError(t, os.MkdirAll(filepath.Join(orphan, "volumes"), 0o750))
	e.HandlePodAdditions([]*corev1.Pod{pod})
	e.waitStatus("handled", "ready", isReady)
	changed := pod.DeepCopy()
	changed.Labels = map[string]string{"changed": "yes"}
	e.HandlePodUpdates([]*corev1.Pod{changed})
	e.waitStatus("handled", "changed", func(pod *corev1.Pod) bool { return pod.Labels["changed"] == "yes" })
	reconciled := changed.DeepCopy()
	reconciled.ResourceVersion = "7"
	e.HandlePodReconcile([]*corev1.Pod{reconciled})
	e.HandlePodSyncs([]*corev1.Pod{reconciled})
	require.NoError(t, e.HandlePodCleanups())
	require.NoError(t, retryUntil(t.Context(), func() error {
		if _, err := os.Stat(orphan); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("directory of a Pod that does not exist: %v", err)
		}
		return nil
	}, nil))
	require.DirExists(t, e.GetPodDir(pod.UID))
	e.HandlePodRemoves([]*corev1.Pod{reconciled})
	require.NoError(t, retryUntil(t.Context(), func() error {
		if _, found := e.GetPodByName("default", "handled"); found {
			return errors.New("the Pod is still there")
		}
		return nil
	}, nil))
	pods, err := e.GetRunningPods()
	require.NoError(t, err)
	require.Len(t, pods, 1, "the other Pod runs on")
}

// TestEmbeddedRunOnce runs Pods with real containers, which run on.
func TestEmbeddedRunOnce(t *testing.T) {
	e := newEmbedded(t, newTestNode(t, t.TempDir()), nil)
	updates := make(chan kubelettypes.PodUpdate, 1)
	updates <- kubelettypes.PodUpdate{Op: kubelettypes.SET, Source: kubelettypes.FileSource, Pods: []*corev1.Pod{
		embeddedPod(t, "runs", shell("exec /bin/busybox sleep 1000000", ""), ""),
		embeddedPod(t, "ends", shell("exit 0", ""), `"restartPolicy": "Never"`),
		embeddedPod(t, "fails", shell("exit 0", ""), `"restartPolicy": "Never", "initContainers": [{"name": "init", `+shell("exit 5", "")[1:]+`]`),
	}}
	results, err := e.RunOnce(updates)
	require.NoError(t, err)
	require.Len(t, results, 3)
	require.NoError(t, results[0].Err)
	require.NoError(t, results[1].Err)
	require.ErrorContains(t, results[2].Err, "Pod default/fails failed")
	require.NoError(t, e.Close())
	again := newEmbedded(t, e.node, nil)
	defer again.Close()
	var pods []*corev1.Pod
	require.Eventually(t, func() bool { // what was seen running may be about to end
		pods, err = again.GetRunningPods()
		return err != nil || len(pods) == 1
	}, waitTimeout, 10*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, "runs", pods[0].Name)
}
