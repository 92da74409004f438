//go:build integration

package integration

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDeclaredFeatures uses what the Node declares: the scheduler and the API server let no Pod do these things without.
func TestDeclaredFeatures(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	node, err := c.client().CoreV1().Nodes().Get(t.Context(), homeNode, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{
		"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	}, node.Status.DeclaredFeatures)
	t.Run("restart of all containers", func(t *testing.T) { checkRestartAll(t, c) })
	t.Run("WebSockets to the kubelet", func(t *testing.T) { checkWebSockets(t, c) })
	t.Run("resize of an init container", func(t *testing.T) { checkInitResize(t, c) })
	t.Run("resize of a whole Pod", func(t *testing.T) { checkPodResize(t, c) })
	c.mustRun("kubectl", "delete", "pods", "--all", "--wait=true", "--timeout=2m")
	c.stop()
	require.Empty(t, c.leftovers())
}

// checkRestartAll runs a Pod of which one container exits once with the code of a rule: its other containers restart, too.
func checkRestartAll(t *testing.T, c *cluster) {
	const script = `[ -e /mark/second ] && { sleep 1000 & trap 'kill $!; exit 0' TERM; wait; }; touch /mark/second; sleep 2; exit 42`
	beside := strings.Replace(shell(sleepScript, ""), "{", `{"name": "beside", `, 1)
	manifest := podManifest("all", shell(script, `"restartPolicy": "Never", "restartPolicyRules": [{"action": "RestartAllContainers",
		"exitCodes": {"operator": "In", "values": [42]}}], "volumeMounts": [{"name": "mark", "mountPath": "/mark"}]`),
		`"volumes": [{"name": "mark", "emptyDir": {}}]`)
	c.apply(strings.Replace(manifest, `"containers": [`, `"containers": [`+beside+", ", 1))
	pod := c.waitPod("name=all", "ready after all its containers have restarted", func(pod *corev1.Pod) bool {
		if !isReady(pod) {
			return false
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.RestartCount == 0 {
				return false
			}
		}
		return true
	})
	require.Len(t, pod.Status.ContainerStatuses, 2)
	require.Equal(t, homeNode, pod.Spec.NodeName)
}

// checkWebSockets runs a command in a container: the API server does not translate its streams, the kubelet does.
func checkWebSockets(t *testing.T, c *cluster) {
	require.Equal(t, "hello\n", c.mustRun("kubectl", "exec", "all", "-c", "beside", "--", "/bin/busybox", "echo", "hello"))
	output, err := c.run("kubectl", "exec", "all", "-c", "beside", "--", "/bin/busybox", "sh", "-c", "exit 7")
	require.Error(t, err)
	require.Contains(t, output, "exit code 7")
	metrics := c.mustRun("kubectl", "get", "--raw", "/metrics")
	require.Contains(t, metrics, `proxy_type="proxied_to_kubelet"`)
	require.NotContains(t, metrics, `proxy_type="translated_at_apiserver"`)
}

// checkInitResize changes the CPU of a regular init container while it runs.
func checkInitResize(t *testing.T, c *cluster) {
	const quota = `cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null`
	resources := func(cpu string) string {
		return `"resources": {"requests": {"cpu": "` + cpu + `", "memory": "32Mi"}, "limits": {"cpu": "` + cpu + `", "memory": "32Mi"}}`
	}
	first := strings.Replace(shell(`until [ -e /go ]; do sleep 1; done`, resources("100m")), "{", `{"name": "first", `, 1)
	c.apply(podManifest("resized", shell(sleepScript, ""), `"initContainers": [`+first+`]`))
	initRuns := func(cpu string) func(*corev1.Pod) bool {
		return func(pod *corev1.Pod) bool {
			statuses := pod.Status.InitContainerStatuses
			return len(statuses) == 1 && statuses[0].State.Running != nil && statuses[0].RestartCount == 0 &&
				statuses[0].Resources != nil && statuses[0].Resources.Limits.Cpu().String() == cpu
		}
	}
	c.waitPod("name=resized", "initializing", initRuns("100m"))
	c.mustRun("kubectl", "patch", "pod", "resized", "--subresource", "resize", "--patch",
		`{"spec": {"initContainers": [{"name": "first", `+resources("200m")+`}]}}`)
	c.waitPod("name=resized", "resized while it initializes", initRuns("200m"))
	require.Contains(t, c.mustRun("kubectl", "exec", "resized", "-c", "first", "--", "/bin/busybox", "sh", "-c", quota+"; true"), "20000")
	c.mustRun("kubectl", "exec", "resized", "-c", "first", "--", "/bin/busybox", "touch", "/go")
	c.waitPod("name=resized", "ready", isReady)
}

// checkPodResize changes the CPU and memory of a Pod as a whole while it runs: its containers have no limits of their own, so
// theirs change with it, without a restart.
func checkPodResize(t *testing.T, c *cluster) {
	const limits = `cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max /sys/fs/cgroup/memory/memory.limit_in_bytes ` +
		`/sys/fs/cgroup/memory.max 2>/dev/null; true`
	resources := func(cpu, memory string) string {
		amounts := `{"cpu": "` + cpu + `", "memory": "` + memory + `"}`
		return `"resources": {"requests": ` + amounts + `, "limits": ` + amounts + `}`
	}
	c.apply(podManifest("whole", shell(sleepScript, ""), resources("100m", "64Mi")))
	inEffect := func(cpu, memory string) func(*corev1.Pod) bool {
		return func(pod *corev1.Pod) bool {
			s := pod.Status
			return isReady(pod) && s.QOSClass == corev1.PodQOSGuaranteed && s.AllocatedResources.Cpu().String() == cpu &&
				s.Resources != nil && s.Resources.Limits.Cpu().String() == cpu && s.Resources.Limits.Memory().String() == memory &&
				s.ContainerStatuses[0].RestartCount == 0
		}
	}
	has := func(quota string, bytes int) {
		t.Helper()
		got := c.mustRun("kubectl", "exec", "whole", "--", "/bin/busybox", "sh", "-c", limits)
		require.Contains(t, got, quota)
		require.Contains(t, got, strconv.Itoa(bytes))
	}
	c.waitPod("name=whole", "ready with its resources", inEffect("100m", "64Mi"))
	has("10000", 64<<20)
	for _, size := range []struct {
		cpu, memory, quota string
		bytes              int
	}{{"200m", "128Mi", "20000", 128 << 20}, {"150m", "96Mi", "15000", 96 << 20}} {
		c.mustRun("kubectl", "patch", "pod", "whole", "--subresource", "resize", "--patch", `{"spec": {`+resources(size.cpu, size.memory)+`}}`)
		c.waitPod("name=whole", "resized as a whole", inEffect(size.cpu, size.memory))
		has(size.quota, size.bytes)
	}
}
