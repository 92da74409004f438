//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// attributesClass is a VolumeAttributesClass of csi.berth.dev.
func attributesClass(name, parameters string) string {
	return `{"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": "` + name + `"},
		"driverName": "csi.berth.dev", "parameters": ` + parameters + `}`
}

// modifyInUse applies VolumeAttributesClasses to a claim whose Pod runs on.
func modifyInUse(t *testing.T, c *cluster) {
	g := newExpansion(t, c, "attributes", "berth-loop", "64Mi", "Filesystem")
	c.apply(attributesClass("slow", `{"iops": "777", "throughput": "20Mi"}`))
	name := func(class string) {
		t.Helper()
		c.mustRun("kubectl", "patch", "pvc", g.name, "-p", `{"spec": {"volumeAttributesClassName": "`+class+`"}}`)
	}
	has := func(class string) {
		t.Helper()
		g.wait("with the class "+class, func(claim *corev1.PersistentVolumeClaim) bool {
			return ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "") == class && claim.Status.ModifyVolumeStatus == nil
		})
	}
	state := func(want corev1.PersistentVolumeClaimModifyVolumeStatus) {
		t.Helper()
		g.wait(string(want), func(claim *corev1.PersistentVolumeClaim) bool {
			return claim.Status.ModifyVolumeStatus != nil && claim.Status.ModifyVolumeStatus.Status == want
		})
	}
	name("slow")
	has("slow")
	claim, err := c.client().CoreV1().PersistentVolumeClaims("default").Get(t.Context(), g.name, metav1.GetOptions{})
	require.NoError(t, err)
	pv, err := c.client().CoreV1().PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "slow", ptr.Deref(pv.Spec.VolumeAttributesClassName, ""))
	device := c.loopOf(pv.Spec.CSI.VolumeHandle)
	require.Contains(t, ioLimits(device), "20971520", "the kernel limits device %s", device)
	class, err := c.client().StorageV1().VolumeAttributesClasses().Get(t.Context(), "slow", metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, class.Finalizers, "kubernetes.io/vac-protection")
	c.waitEvents("default", g.name, "VolumeModify: ", "VolumeModifySuccessful: ")

	name("later")
	state(corev1.PersistentVolumeClaimModifyVolumePending)
	require.Contains(t, g.explain(), "VolumeAttributesClass later does not exist")
	c.apply(attributesClass("later", `{"colour": "blue"}`))
	state(corev1.PersistentVolumeClaimModifyVolumeInfeasible)
	require.Contains(t, g.explain(), `"colour" is not supported`)
	name("slow")
	has("slow")
	require.Contains(t, g.explain(), "bound to volume")
	c.apply(attributesClass("fast", `{"iops": "max"}`))
	name("fast")
	has("fast")
	require.Empty(t, ioLimits(device))
	g.remove()
}

// loopOf returns the number of the device that a volume of csi.berth.dev is attached to, as the kernel writes it.
func (c *cluster) loopOf(handle string) string {
	c.t.Helper()
	for _, file := range c.loopDevices() {
		image, err := os.ReadFile(file)
		require.NoError(c.t, err)
		if strings.Contains(string(image), handle) {
			number, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(file)), "dev"))
			require.NoError(c.t, err)
			return strings.TrimSpace(string(number))
		}
	}
	require.Fail(c.t, "the volume is not attached", handle)
	return ""
}

// ioLimits returns the limits that the kernel has for a device.
func ioLimits(device string) string {
	files, _ := filepath.Glob("/sys/fs/cgroup/*/io.max")
	legacy, _ := filepath.Glob("/sys/fs/cgroup/blkio/blkio.throttle.*_device")
	var found strings.Builder
	for _, file := range append(append(files, legacy...), "/sys/fs/cgroup/io.max") {
		content, _ := os.ReadFile(file)
		for line := range strings.Lines(string(content)) {
			if strings.HasPrefix(line, device+" ") {
				found.WriteString(line)
			}
		}
	}
	return found.String()
}
