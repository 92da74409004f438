package attacher_test

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRequestsFitTheCapabilities publishes with and without the capabilities that decide what a request may contain.
func TestRequestsFitTheCapabilities(t *testing.T) {
	const (
		publish  = csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
		readonly = csi.ControllerServiceCapability_RPC_PUBLISH_READONLY
		single   = csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	)
	for name, test := range map[string]struct {
		has      []csi.ControllerServiceCapability_RPC_Type
		mode     corev1.PersistentVolumeAccessMode
		want     csi.VolumeCapability_AccessMode_Mode
		readonly bool
	}{
		"least": {mode: corev1.ReadWriteOncePod, want: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		"read-only": {has: []csi.ControllerServiceCapability_RPC_Type{readonly}, mode: corev1.ReadWriteOnce,
			want: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, readonly: true},
		"one writer": {has: []csi.ControllerServiceCapability_RPC_Type{single}, mode: corev1.ReadWriteOncePod,
			want: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		"several writers": {has: []csi.ControllerServiceCapability_RPC_Type{single}, mode: corev1.ReadWriteOnce,
			want: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.driver.set(func() { w.driver.capabilities = append(test.has, publish) })
			pv, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
			require.NoError(t, err)
			pv.Name, pv.Spec.AccessModes, pv.Spec.CSI.ReadOnly = "pv-2", []corev1.PersistentVolumeAccessMode{test.mode}, true
			_, err = w.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{})
			require.NoError(t, err)
			w.waitForVolume("pv-2", "handle")
			w.createFor("va", driverName, "pv-2")
			w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.Attached }, "it must be attached")
			w.driver.set(func() {
				require.Equal(t, test.want, w.driver.last.VolumeCapability.AccessMode.Mode)
				require.Equal(t, test.readonly, w.driver.last.Readonly)
			})
		})
	}
}
