//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/node"
)

// mountSmallDisk mounts a file system of its own of that size, until the end of the test or a call of unmount, which fails if
// it is not mounted any more.
func mountSmallDisk(t *testing.T, dir, size string, options ...string) (unmount func()) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, args := range [][]string{
		{"truncate", "-s", size, image}, append(append([]string{"mkfs.ext4", "-q", "-m", "0"}, options...), image), {"mount", "-o", "loop", image, dir},
	} {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return func() {
		t.Helper()
		require.NoError(t, unix.Unmount(dir, 0), "the disk is its user's: it must be mounted still, and nothing may use it")
	}
}

// TestPressureEvictsTheRightPod brings a node short of memory, disk and process IDs, one after the other. Each time the Pod that
// causes it is evicted, and its neighbour runs on.
func TestPressureEvictsTheRightPod(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.stop()
	unmount := mountSmallDisk(t, filepath.Join(c.dataDir, "kubelet"), "320M") // images stay where they are
	usage, err := node.NewLinuxMachine("/", "/").Usage()
	require.NoError(t, err)
	// The thresholds of memory and disk are about what only this cluster uses. Other programs of the machine may start some
	// processes meanwhile.
	const spare, forked = 2000, 3500
	c.up("--unsafe-no-fsync", "--eviction-hard", fmt.Sprintf("allocatableMemory.available<98%%,nodefs.available<128Mi,pid.available<%d",
		usage.PIDCapacity-usage.PIDs-spare), "--eviction-pressure-transition-period", "3s")
	const mounts = `"volumeMounts": [{"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"}]`
	const volumes = `"volumes": [{"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}]`
	c.apply(podManifest("neighbour", shell("echo kept > /disk/file; sleep 1000000", mounts), volumes))
	c.waitPod("name=neighbour", "running", isReady)
	for _, test := range []struct {
		name, script string
		resource     string
		condition    corev1.NodeConditionType
	}{
		{"memory", "dd if=/dev/zero of=/memory/x bs=1M count=900; sleep 1000000", "memory", corev1.NodeMemoryPressure},
		{"disk", "dd if=/dev/zero of=/disk/x bs=1M count=240; sleep 1000000", "ephemeral-storage", corev1.NodeDiskPressure},
		{"processes", fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 1000000 & i=$((i+1)); done; wait", forked), "pids", corev1.NodePIDPressure},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.apply(podManifest(test.name, shell(test.script, mounts), volumes))
			began := time.Now()
			pod := c.waitPod("name="+test.name, "evicted", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
			t.Logf("evicted %s after it was created: %s", time.Since(began).Round(time.Millisecond), pod.Status.Message)
			require.Equal(t, "Evicted", pod.Status.Reason)
			require.Contains(t, pod.Status.Message, "The node was low on resource: "+test.resource+". Threshold quantity: ")
			disrupted := podutil.FindCondition(&pod.Status, corev1.DisruptionTarget)
			require.NotNil(t, disrupted)
			require.Equal(t, corev1.PodReasonTerminationByKubelet, disrupted.Reason)
			checkEvictionEvents(t, c, pod, test.resource)
			require.Contains(t, c.mustRun("explain", "pod", test.name), "was evicted by node "+homeNode)
			c.waitCondition(test.condition, corev1.ConditionFalse)
			neighbour := c.waitPod("name=neighbour", "running", isReady)
			require.Zero(t, neighbour.Status.ContainerStatuses[0].RestartCount)
			c.mustRun("kubectl", "delete", "pod", test.name, "--timeout=2m")
		})
	}
	require.Equal(t, "kept\n", c.mustRun("kubectl", "exec", "neighbour", "--", "/bin/busybox", "cat", "/disk/file"))
	metrics := c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/metrics")
	for _, signal := range []string{"allocatableMemory.available", "nodefs.available", "pid.available"} {
		require.Contains(t, metrics, fmt.Sprintf(`kubelet_evictions{eviction_signal=%q} 1`, signal))
		require.Contains(t, metrics, fmt.Sprintf(`kubelet_eviction_stats_age_seconds_count{eviction_signal=%q} 1`, signal))
	}
	c.stop()
	unmount()
	require.Empty(t, c.leftovers())
}

// TestLimitsOfEphemeralStorage has Pods that exceed their limits by each kind of what they write, beside one that does not.
func TestLimitsOfEphemeralStorage(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	const limits = `"resources": {"limits": {"ephemeral-storage": "3Mi"}}`
	const volume = `"volumes": [{"name": "v", "emptyDir": {}}]`
	const mount = `, "volumeMounts": [{"name": "v", "mountPath": "/v"}]`
	write := func(path string, kib int) string {
		return fmt.Sprintf("dd if=/dev/zero of=%s bs=1k count=%d; sleep 1000000", path, kib)
	}
	c.apply(podManifest("modest", shell(write("/v/f", 500), limits+mount), volume))
	exceeded := `Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. `
	tests := map[string]struct{ script, more, beside, message string }{
		"layer": {write("/f", 5000), limits, "", exceeded},
		"log": {"i=0; while [ $i -lt 100000 ]; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; i=$((i+1)); done; sleep 1000000",
			limits, "", exceeded},
		"volume": {write("/v/f", 5000), limits + mount, "", exceeded},
		"container": { // the other container's limit leaves enough to the Pod
			write("/f", 5000), limits,
			`, {"name": "other", ` + shell("sleep 1000000", `"resources": {"limits": {"ephemeral-storage": "1Gi"}}`)[1:],
			`Container main exceeded its local ephemeral storage limit "3Mi". `,
		},
	}
	// All at once: the runtime measures layers once a minute.
	for name, test := range tests {
		c.apply(podManifest(name, shell(test.script, test.more)+test.beside, volume))
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := c.waitPod("name="+name, "evicted", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
			require.Equal(t, "Evicted", pod.Status.Reason)
			require.Equal(t, test.message, pod.Status.Message)
			require.Nil(t, podutil.FindCondition(&pod.Status, corev1.DisruptionTarget), "the fault is its own")
			require.Contains(t, c.mustRun("explain", "pod", name), "was evicted: it exceeded a limit of its own: "+strings.TrimSpace(test.message))
		})
	}
	modest := c.waitPod("name=modest", "running", isReady)
	require.Equal(t, corev1.PodRunning, modest.Status.Phase)
	metrics := c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/metrics")
	require.Contains(t, metrics, `kubelet_evictions{eviction_signal="ephemeralpodfs.limit"} 3`)
	require.Contains(t, metrics, `kubelet_evictions{eviction_signal="ephemeralcontainerfs.limit"} 1`)
	c.stop()
	require.Empty(t, c.leftovers())
}

// checkEvictionEvents waits for the events of an eviction: that of the Pod, with annotations, and that of the Node.
func checkEvictionEvents(t *testing.T, c *cluster, pod *corev1.Pod, resource string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.True(t, waitUntil(ctx, func() bool {
		events, err := c.client().CoreV1().Events("").List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		ofPod, ofNode := false, false
		for _, event := range events.Items {
			ofPod = ofPod || event.Reason == "Evicted" && event.InvolvedObject.UID == pod.UID && event.Annotations["starved_resource"] == resource
			ofNode = ofNode || event.Reason == "EvictionThresholdMet" && strings.Contains(event.Message, "Attempting to reclaim "+resource)
		}
		return ofPod && ofNode
	}), "events of the eviction")
}

// waitCondition waits until the Node has the condition with that status.
func (c *cluster) waitCondition(kind corev1.NodeConditionType, status corev1.ConditionStatus) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	require.True(c.t, waitUntil(ctx, func() bool {
		n, err := c.client().CoreV1().Nodes().Get(ctx, homeNode, metav1.GetOptions{})
		require.NoError(c.t, err)
		for _, condition := range n.Status.Conditions {
			if condition.Type == kind {
				return condition.Status == status
			}
		}
		return false
	}), "condition %s=%s", kind, status)
}
