//go:build integration

package integration

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/testnet"
)

// refused starts berth, which must end by itself with an error, and returns its output.
func (c *cluster) refused(extra ...string) string {
	c.t.Helper()
	out, err := c.run(append(append([]string{"up"}, c.args...), extra...)...)
	require.Error(c.t, err, "berth up must refuse; it printed:\n%s", out)
	return out
}

func TestBadStarts(t *testing.T) {
	t.Run("not root", func(t *testing.T) {
		c := newCluster(t)
		cmd := exec.Command(c.berth, append([]string{"up"}, c.args...)...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		// The program may lie below a directory that only root may enter, so it goes in through an open file.
		file, err := os.Open(c.berth)
		require.NoError(t, err)
		defer file.Close()
		cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{file}
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "use sudo")
	})
	t.Run("port in use", func(t *testing.T) {
		c := newCluster(t)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
		out := c.refused("--api-port", port)
		require.Contains(t, out, port)
		require.Contains(t, out, "process "+strconv.Itoa(os.Getpid()), "the error names the process that has the port")
		require.Empty(t, c.leftovers(), "a refused start leaves nothing")
	})
	t.Run("state damaged", func(t *testing.T) {
		c := newCluster(t)
		require.NoError(t, os.MkdirAll(c.dataDir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(c.dataDir, "cluster.json"), []byte(`{"format": 1, "nodeN`), 0o600))
		out := c.refused()
		require.Contains(t, out, "cluster.json is damaged")
	})
	t.Run("state of a newer version", func(t *testing.T) {
		c := newCluster(t)
		require.NoError(t, os.MkdirAll(c.dataDir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(c.dataDir, "cluster.json"), []byte(`{"format": 99}`), 0o600))
		out := c.refused()
		require.Contains(t, out, "newer berth")
	})
	t.Run("directory of another program", func(t *testing.T) {
		c := newCluster(t)
		require.NoError(t, os.MkdirAll(c.dataDir, 0o700))
		precious := filepath.Join(c.dataDir, "thesis.txt")
		require.NoError(t, os.WriteFile(precious, []byte("x"), 0o600))
		require.Contains(t, c.refused(), "thesis.txt")
		require.Contains(t, c.refused("--reset"), "so berth did not create it")
		require.FileExists(t, precious)
	})
	t.Run("networks overlap", func(t *testing.T) {
		c := newCluster(t)
		out := c.refused("--service-cidr", testnet.Prefix(c.network).String())
		require.Contains(t, out, "overlap")
		require.Empty(t, c.leftovers(), "a refused start leaves nothing")
	})
	t.Run("unknown flag", func(t *testing.T) {
		c := newCluster(t)
		require.Contains(t, c.refused("--api-prot", "1"), "--api-prot")
	})
	t.Run("no cluster", func(t *testing.T) {
		c := newCluster(t)
		out, err := c.run("kubectl", "get", "pods")
		require.Error(t, err)
		require.Contains(t, out, "berth up")
	})
}

// TestBadPods creates objects that cannot work, and checks that the cluster says why.
func TestBadPods(t *testing.T) {
	c := newCluster(t)
	c.up()
	t.Run("a second berth on the same directory", func(t *testing.T) {
		require.Contains(t, c.refused(), "already running")
	})
	t.Run("a manifest that does not parse", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "bad.yaml")
		require.NoError(t, os.WriteFile(path, []byte("kind: Pod\n  apiVersion: v1\n"), 0o600))
		out, err := c.run("kubectl", "apply", "-f", path)
		require.Error(t, err)
		require.Contains(t, out, "bad.yaml")
	})
	t.Run("an image that does not exist", func(t *testing.T) {
		c.apply(podManifest("absent", `{"image": "berth.local/no-such-image:v1", "imagePullPolicy": "Never"}`, ""))
		c.waitPod("name=absent", "waiting for its image", waitingFor("ErrImageNeverPull"))
		out, err := c.run("explain", "pod", "absent", "--exit-code")
		require.Error(t, err)
		require.Contains(t, out, "no-such-image")
		require.Contains(t, out, "ErrImageNeverPull")
	})
	t.Run("a claim without a class", func(t *testing.T) {
		c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "lost"}, "spec": {"storageClassName": "fast",
			"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}`)
		c.apply(podManifest("lost", `{"image": "berth.local/demo:v1", "volumeMounts": [{"name": "v", "mountPath": "/data"}]}`,
			`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "lost"}}]`))
		c.waitPod("name=lost", "unschedulable", func(pod *corev1.Pod) bool {
			return len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Status == corev1.ConditionFalse
		})
		out := c.mustRun("explain", "pod", "lost")
		require.Contains(t, out, `asks for storage class "fast", which does not exist`)
	})
	t.Run("a field that is not supported", func(t *testing.T) {
		c.apply(podManifest("devices", `{"image": "berth.local/demo:v1", "volumeMounts": [{"name": "v", "mountPath": "/data"}]}`,
			`"volumes": [{"name": "v", "fc": {"targetWWNs": ["50060e801049cfd1"], "lun": 0}}]`))
		pod := c.waitPod("name=devices", "refused", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
		require.Contains(t, pod.Status.Message, "spec.volumes[v].fc", "the field is named")
	})
	t.Run("a missing configMap, then there", func(t *testing.T) {
		c.apply(podManifest("late", `{"image": "berth.local/demo:v1", "volumeMounts": [{"name": "v", "mountPath": "/etc/late"}]}`,
			`"volumes": [{"name": "v", "configMap": {"name": "late"}}]`))
		c.waitPod("name=late", "waiting", func(pod *corev1.Pod) bool { return len(pod.Status.ContainerStatuses) > 0 })
		out := c.mustRun("explain", "pod", "late")
		require.Contains(t, out, "late")
		c.mustRun("kubectl", "create", "configmap", "late", "--from-literal=a=b")
		c.waitPod("name=late", "running", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
	})
	c.stop()
	require.Empty(t, c.leftovers())
}

func waitingFor(reason string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		for _, container := range pod.Status.ContainerStatuses {
			if container.State.Waiting != nil && container.State.Waiting.Reason == reason {
				return true
			}
		}
		return false
	}
}

// podManifest is a Pod of one container, given as JSON without its name; more goes into the spec.
func podManifest(name, container, more string) string {
	if more != "" {
		more = ", " + more
	}
	return `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "` + name + `", "labels": {"name": "` + name + `"}},
		"spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", ` + container[1:] + `]` + more + `}}`
}
