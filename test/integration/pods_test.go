//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/imagestore"
)

// shellImage is an image of apt's static busybox, imported as a user would.
const shellImage = "example.test/busybox:v1"

// importShell builds the image's archive and imports it with the command line.
func importShell(t *testing.T, c *cluster) {
	t.Helper()
	binary, err := os.ReadFile("/bin/busybox")
	require.NoError(t, err, "apt-get install busybox-static (make deps does)")
	image, err := imagestore.Build(imagestore.BuildSpec{Name: shellImage, Binary: binary, Path: "/bin/busybox"})
	require.NoError(t, err)
	archive := filepath.Join(t.TempDir(), "busybox.tar")
	file, err := os.Create(archive)
	require.NoError(t, err)
	require.NoError(t, imagestore.WriteTar(file, image))
	require.NoError(t, file.Close())
	require.Contains(t, c.mustRun("images", "import", archive), shellImage)
}

// shell is a container, as JSON, that runs a script.
func shell(script, more string) string {
	if more != "" {
		more = ", " + more
	}
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(script)
	return `{"image": "` + shellImage + `", "imagePullPolicy": "Never", "command": ["/bin/busybox", "sh", "-c", "` + quoted + `"]` + more + `}`
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// TestPods runs all common kinds of Pods.
func TestPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	t.Run("images are listed and removed", func(t *testing.T) { checkImages(t, c) })
	t.Run("every kind of volume", func(t *testing.T) { checkVolumes(t, c) })
	t.Run("environment", func(t *testing.T) {
		c.apply(podManifest("env", shell(`echo "$GREETING $WHO on $NODE"; exit 0`, `"env": [
			{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
			{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
			{"name": "GREETING", "value": "hello $(WHO):"}]`), `"restartPolicy": "Never"`))
		c.waitPod("name=env", "finished", finished)
		require.Equal(t, "hello env: env on "+homeNode+"\n", c.mustRun("kubectl", "logs", "env"))
	})
	t.Run("restart policy and backoff", func(t *testing.T) {
		c.apply(podManifest("crash", shell("echo once more; exit 3", ""), `"restartPolicy": "OnFailure"`))
		pod := c.waitPod("name=crash", "in its backoff", waitingFor("CrashLoopBackOff"))
		require.GreaterOrEqual(t, pod.Status.ContainerStatuses[0].RestartCount, int32(1))
		require.Equal(t, int32(3), pod.Status.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode)
		require.Contains(t, c.mustRun("explain", "pod", "crash"), "exit code 3")
		require.Equal(t, "once more\n", c.mustRun("kubectl", "logs", "crash", "--previous"))
	})
	t.Run("graceful deletion", func(t *testing.T) { checkGrace(t, c) })
	t.Run("host network", func(t *testing.T) {
		c.apply(podManifest("host", shell("sleep 1000 & trap 'kill $!; exit 0' TERM; wait", ""), `"hostNetwork": true`))
		pod := c.waitPod("name=host", "ready", isReady)
		require.Equal(t, c.gateway(), pod.Status.PodIP)
	})
	t.Run("logs under the name that collectors look for", func(t *testing.T) { checkLinks(t, c) })
	t.Run("checkpoint", func(t *testing.T) { checkCheckpoint(t, c) })
	t.Run("a child that dies is started again", func(t *testing.T) { checkChildren(t, c) })
	c.mustRun("kubectl", "delete", "pods", "--all", "--wait=true", "--timeout=2m")
	c.stop()
	require.Empty(t, c.leftovers())
}

// checkLinks reads the log of the Pod env through its link, which is removed with the Pod.
func checkLinks(t *testing.T, c *cluster) {
	pod := c.waitPod("name=env", "finished", finished)
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	link := filepath.Join(c.dataDir, "log", "containers", "env_default_main-"+id+".log")
	content, err := os.ReadFile(link)
	require.NoError(t, err)
	require.Contains(t, string(content), "hello env:")
	c.mustRun("kubectl", "delete", "pod", "env", "--timeout=2m")
	require.NoError(t, c.poll(func(context.Context) bool {
		_, err := os.Lstat(link)
		return errors.Is(err, os.ErrNotExist)
	}), "the link stays: %s", link)
}

// checkCheckpoint requests a checkpoint from the node, as an administrator. containerd reports an error if it cannot do it.
func checkCheckpoint(t *testing.T, c *cluster) {
	pod := c.waitPod("name=host", "ready", isReady)
	node, err := c.client().CoreV1().Nodes().Get(t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
	require.NoError(t, err)
	config := rest.CopyConfig(c.admin())
	config.ServerName = node.Name
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	ask := func(name string) (code int, body string) {
		address := fmt.Sprintf("https://%s:%d/checkpoint/default/%s/main",
			pod.Status.HostIP, node.Status.DaemonEndpoints.KubeletEndpoint.Port, name)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(content)
	}
	code, body := ask("none")
	require.Equal(t, http.StatusNotFound, code, body)
	// The same through the API server, whose own identity must be authorized by the node.
	raw, err := c.client().CoreV1().RESTClient().Post().Resource("nodes").Name(node.Name).SubResource("proxy").
		Suffix("checkpoint/default/none/main").DoRaw(t.Context())
	require.True(t, apierrors.IsNotFound(err), "%v: %s", err, raw)
	require.Contains(t, string(raw), "none", "the response comes from the node")
	code, body = ask("host")
	t.Log(code, body)
	if _, absent := exec.LookPath("criu"); absent != nil {
		require.Equal(t, http.StatusInternalServerError, code, body)
		require.Contains(t, strings.ToLower(body), "criu binary")
		return
	}
	if out, err := exec.CommandContext(t.Context(), "criu", "check").CombinedOutput(); err != nil { // an old one on a new kernel
		t.Logf("criu does not work on this machine: %s", out)
		require.Equal(t, http.StatusInternalServerError, code, body)
		require.Contains(t, strings.ToLower(body), "criu")
		return
	}
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, body, "checkpoint-host_default-main-")
}

func checkImages(t *testing.T, c *cluster) {
	list := c.mustRun("images", "list")
	require.Contains(t, list, shellImage)
	require.Contains(t, list, "berth.local/demo:v1")
	require.Contains(t, c.mustRun("images", "remove", shellImage), "removed")
	require.NotContains(t, c.mustRun("images"), shellImage)
	importShell(t, c)

	bad := filepath.Join(t.TempDir(), "bad.tar")
	require.NoError(t, os.WriteFile(bad, []byte("this is no archive"), 0o600))
	out, err := c.run("images", "import", bad)
	require.Error(t, err)
	require.Contains(t, out, "archive")
	out, err = c.run("images", "remove", "example.test/none:v1")
	require.Error(t, err)
	require.Contains(t, out, "not found")
}

func checkVolumes(t *testing.T, c *cluster) {
	host := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(host, "file"), []byte("from the host"), 0o644))
	c.mustRun("kubectl", "create", "configmap", "settings", "--from-literal=color=blue")
	c.mustRun("kubectl", "create", "secret", "generic", "key", "--from-literal=code=1234")
	script := `set -e
cat /config/color /secret/code /host/file /down/name; echo
test -s /token/token; echo scratch > /scratch/x; cat /scratch/x
grep -q ' /memory tmpfs ' /proc/mounts; grep -q ' /secret tmpfs ' /proc/mounts
cat /all/color; cat /all/name; echo; while :; do sleep 0.05; grep -q red /config/color && echo turned red && break; done`
	c.apply(podManifest("volumes", shell(script, `"volumeMounts": [
		{"name": "config", "mountPath": "/config"}, {"name": "secret", "mountPath": "/secret", "readOnly": true},
		{"name": "host", "mountPath": "/host"}, {"name": "down", "mountPath": "/down"}, {"name": "token", "mountPath": "/token"},
		{"name": "scratch", "mountPath": "/scratch"}, {"name": "memory", "mountPath": "/memory"}, {"name": "all", "mountPath": "/all"}]`),
		`"restartPolicy": "Never", "volumes": [
		{"name": "config", "configMap": {"name": "settings"}}, {"name": "secret", "secret": {"secretName": "key"}},
		{"name": "host", "hostPath": {"path": "`+host+`", "type": "Directory"}},
		{"name": "down", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
		{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "test"}}]}},
		{"name": "scratch", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
		{"name": "all", "projected": {"sources": [{"configMap": {"name": "settings"}},
			{"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}]`))
	c.waitPod("name=volumes", "running", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning || finished(pod) })
	c.mustRun("kubectl", "patch", "configmap", "settings", "-p", `{"data": {"color": "red"}}`)
	pod := c.waitPod("name=volumes", "finished", finished)
	log := c.mustRun("kubectl", "logs", "volumes")
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase, log)
	require.Equal(t, "blue1234from the hostvolumes\nscratch\nbluevolumes\nturned red\n", log)
}

// checkGrace deletes a Pod that takes a moment to stop, and one that ignores SIGTERM.
func checkGrace(t *testing.T, c *cluster) {
	mark := t.TempDir()
	trap := `trap 'echo stopped > /mark/`
	manifest := func(name, script string) string {
		return podManifest(name, shell(script, `"volumeMounts": [{"name": "mark", "mountPath": "/mark"}]`),
			`"volumes": [{"name": "mark", "hostPath": {"path": "`+mark+`"}}]`)
	}
	c.apply(manifest("polite", trap+`polite; exit 0' TERM; echo ready; while :; do sleep 0.05; done`))
	c.apply(manifest("stubborn", `trap '' TERM; echo ready; while :; do sleep 0.05; done`))
	c.waitPod("name=polite", "ready", isReady)
	c.waitPod("name=stubborn", "ready", isReady)
	// A Pod that stops at once does not wait for its grace period, which is longer than kubectl waits.
	c.mustRun("kubectl", "delete", "pod", "polite", "--grace-period=600", "--timeout=2m")
	require.FileExists(t, filepath.Join(mark, "polite"))
	c.mustRun("kubectl", "delete", "pod", "stubborn", "--timeout=2m")
}

// checkChildren kills containerd and the control plane under a running Pod.
func checkChildren(t *testing.T, c *cluster) {
	before := c.waitPod("name=host", "ready", isReady).Status.ContainerStatuses[0]
	for _, name := range []string{"containerd", "control plane"} {
		binary := map[string]string{"containerd": "containerd", "control plane": "berth-controlplane"}[name]
		killed := 0
		for pid, command := range c.processes() {
			if isProgram(command, binary) {
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				killed++
			}
		}
		require.Equal(t, 1, killed, name)
		c.out.waitFor(t, name+" exited", c.ended)
	}
	c.out.waitForTimes(t, "kube-controller-manager    ready", 2, c.ended)
	// The cluster has recovered when it runs a new Pod.
	c.apply(podManifest("after", shell("exit 0", ""), `"restartPolicy": "Never"`))
	require.Equal(t, corev1.PodSucceeded, c.waitPod("name=after", "finished", finished).Status.Phase)
	after, err := c.client().CoreV1().Pods("default").Get(t.Context(), "host", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, before.ContainerID, after.Status.ContainerStatuses[0].ContainerID, "its container was not restarted")
	require.Equal(t, before.RestartCount, after.Status.ContainerStatuses[0].RestartCount)
}
