//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/volume/blockpin"
)

// blockPod is a Pod that prints the number of the device of claim block-1, writes to it, and keeps running.
func (w *volumeChaos) blockPod(name string) *corev1.Pod {
	m := newPodBuilder(name, w.acks)
	m.Spec.Volumes = append(m.Spec.Volumes, corev1.Volume{Name: "block-1", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "block-1"}}})
	m.main.VolumeDevices = []corev1.VolumeDevice{{Name: "block-1", DevicePath: "/dev/block-1"}}
	fmt.Fprintf(&m.script, "echo %[1]s | dd of=/dev/block-1 bs=%[2]d conv=notrunc 2>/dev/null\n"+
		"ls -l /dev/block-1 > /acks/%[1]s.tmp; mv /acks/%[1]s.tmp /acks/%[1]s\n"+
		"trap 'exit 0' TERM; while :; do sleep 0.2; done\n", name, bytesPerPod)
	return m.build()
}

// TestBlockDeviceIsHeldWhoeverDies kills the kubelet repeatedly while a Pod uses a block device: one loop device must pin
// the device all the time, and none after the Pod is gone.
func TestBlockDeviceIsHeldWhoeverDies(t *testing.T) {
	w := newVolumeChaos(t, 1)
	holder := blockpin.New(blockpin.Deps{})
	held := func() []string {
		paths, err := holder.ListBelow(w.kubeletDir())
		require.NoError(t, err)
		return paths
	}
	pods := w.client.CoreV1().Pods("default")
	create := func(pod *corev1.Pod) *corev1.Pod {
		made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		require.True(t, waitUntil(t.Context(), func() bool { return exists(filepath.Join(w.acks, pod.Name)) }))
		return made
	}
	pod := create(w.blockPod("first"))
	claim, err := w.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "block-1", metav1.GetOptions{})
	require.NoError(t, err)
	global := filepath.Join(w.kubeletDir(), "plugins/kubernetes.io/csi/volumeDevices", claim.Spec.VolumeName)
	require.Equal(t, []string{filepath.Join(global, "dev", string(pod.UID))}, held())
	var volume unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(w.kubeletDir(), "pods", string(pod.UID), "volumeDevices",
		"kubernetes.io~csi", claim.Spec.VolumeName), &volume))
	seen, err := os.ReadFile(filepath.Join(w.acks, "first"))
	require.NoError(t, err)
	number := fmt.Sprintf("%d, %d", unix.Major(volume.Rdev), unix.Minor(volume.Rdev))
	require.Contains(t, strings.Join(strings.Fields(string(seen)), " "), number, "the container has the volume's device")

	devices := w.loopDevices()
	require.Len(t, devices, 2, "the volume's disk, and the pin")
	for i := range 5 {
		w.daemons["kubelet"].kill()
		require.Equal(t, devices, w.loopDevices())
		// The new process works once it has started another Pod; it took over existing volumes before.
		next := fmt.Sprintf("next-%d", i)
		create(plainPod(next, w.acks))
		require.NoError(t, pods.Delete(t.Context(), next, metav1.DeleteOptions{}))
		require.Equal(t, devices, w.loopDevices(), "the new process must find the pin, and create none")
	}
	require.NoError(t, pods.Delete(t.Context(), "first", metav1.DeleteOptions{}))
	w.requireNothingLeft("after the first Pod")

	for i := range 8 { // killed at any moment of a start and of an end
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.runPod(w.blockPod(fmt.Sprintf("short-%d", i)), i%2 == 0, time.Duration(w.chance(1500))*time.Millisecond)
		}()
		for range 2 {
			select {
			case <-done:
			case <-time.After(time.Duration(w.chance(1200)) * time.Millisecond):
				w.daemons["kubelet"].kill()
			}
		}
		<-done
		require.False(t, t.Failed())
	}
	w.requireNothingLeft("after all Pods")
	w.shutdown()
}

// plainPod is a Pod without volumes of its own that only acknowledges that it runs.
func plainPod(name, acks string) *corev1.Pod {
	m := newPodBuilder(name, acks)
	fmt.Fprintf(&m.script, "touch /acks/%s\n", name)
	return m.build()
}
