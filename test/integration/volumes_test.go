//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/csidriver"
)

// TestSizesOfVolumes checks that a Pod is evicted when it exceeds the limit of its emptyDir, and that a disk is expanded
// while a Pod uses it.
func TestSizesOfVolumes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	t.Run("a Pod that outgrows its emptyDir", func(t *testing.T) { checkSizeLimit(t, c) })
	t.Run("a disk that grows", func(t *testing.T) { checkGrowth(t, c) })
	c.stop()
	require.Empty(t, c.leftovers())
	require.Empty(t, c.loopDevices())
}

func checkSizeLimit(t *testing.T, c *cluster) {
	const limited = `"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]`
	mount := `"volumeMounts": [{"name": "v", "mountPath": "/v"}]`
	c.apply(podManifest("modest", shell("dd if=/dev/zero of=/v/f bs=1k count=500; sleep 1000000", mount), limited))
	c.apply(podManifest("greedy", shell("dd if=/dev/zero of=/v/f bs=1k count=4000; sleep 1000000", mount), limited))
	pod := c.waitPod("name=greedy", "evicted", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	require.Equal(t, "Evicted", pod.Status.Reason)
	require.Contains(t, pod.Status.Message, `Usage of EmptyDir volume "v" exceeds the limit "1Mi"`)
	modest := c.waitPod("name=modest", "running", isReady)
	require.Equal(t, corev1.PodRunning, modest.Status.Phase, "the other Pod keeps running")
	volumes := filepath.Join(c.dataDir, "kubelet", "pods", string(pod.UID), "volumes")
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.True(t, waitUntil(ctx, func() bool { return !exists(volumes) }), "its data is removed, although its object stays")
	c.mustRun("kubectl", "delete", "pod", "modest", "greedy", "--timeout=2m")
}

// checkGrowth does what a resizer does, and checks the size that the Pod has. It must take less than a minute: in one
// process the controllers notify the kubelet.
func checkGrowth(t *testing.T, c *cluster) {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	// Only processes with CAP_SYS_RESOURCE can expand a mounted ext4; containers often lack it.
	class := csidriver.StorageClass()
	class.Name, class.Annotations = "grows", nil
	class.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "xfs"}
	_, err := c.client().StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	require.NoError(t, err)
	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "disk"}, "spec": {"storageClassName": "grows",
		"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "320Mi"}}}}`)
	c.apply(podManifest("grows", shell("sleep 1000000", `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`),
		`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "disk"}}]`))
	c.waitPod("name=grows", "running", isReady)
	blocks := func() int {
		lines := strings.Split(strings.TrimSpace(c.mustRun("kubectl", "exec", "grows", "--", "/bin/busybox", "df", "-k", "/disk")), "\n")
		size, err := strconv.Atoi(strings.Fields(lines[len(lines)-1])[1])
		require.NoError(t, err)
		return size
	}
	before := blocks()
	const size = 800 << 20
	pv := c.expandDisk(ctx, "disk", size)

	core := c.client().CoreV1()
	changes, err := core.PersistentVolumeClaims("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=disk"})
	require.NoError(t, err)
	defer changes.Stop()
	began := time.Now()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"capacity": map[string]any{"storage": strconv.Itoa(size)}}})
	require.NoError(t, err)
	_, err = core.PersistentVolumes().Patch(ctx, pv, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
	for known := false; !known; {
		event, open := <-changes.ResultChan()
		require.True(t, open, "the claim does not get its new capacity")
		claim, is := event.Object.(*corev1.PersistentVolumeClaim)
		known = is && claim.Status.Capacity.Storage().Value() == size
	}
	took := time.Since(began)
	t.Logf("the claim knew %s after its volume had grown", took.Round(time.Millisecond))
	require.Less(t, took, 30*time.Second, "it must not wait for the periodic check")
	require.Greater(t, blocks(), 2*before)
	c.mustRun("kubectl", "delete", "pod", "grows", "--timeout=2m")
	c.mustRun("kubectl", "delete", "pvc", "disk", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
}

// expandDisk calls the driver to expand the disk of a claim, and returns the name of its PersistentVolume.
func (c *cluster) expandDisk(ctx context.Context, claimName string, size int64) string {
	c.t.Helper()
	core := c.client().CoreV1()
	claim, err := core.PersistentVolumeClaims("default").Get(ctx, claimName, metav1.GetOptions{})
	require.NoError(c.t, err)
	pv, err := core.PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(c.t, err)
	conn, err := grpc.NewClient("unix://"+filepath.Join(c.runDir(), "csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(c.t, err)
	defer conn.Close()
	_, err = csi.NewControllerClient(conn).ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	})
	require.NoError(c.t, err)
	return pv.Name
}
