package volume_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/testsuite"
)

// fakePlugin is a plugin for emptyDir that does nothing.
type fakePlugin string

var _ volume.Plugin = fakePlugin("")

func (n fakePlugin) Name() string { return string(n) }
func (n fakePlugin) CanSupport(spec volume.Spec) bool {
	return spec.PV == nil && spec.Volume != nil && spec.Volume.EmptyDir != nil
}
func (n fakePlugin) SetUp(context.Context, volume.Request) (volume.Mount, error) {
	return volume.Mount{}, nil
}
func (n fakePlugin) TearDown(context.Context, string) error { return nil }

func TestRegistry(t *testing.T) {
	_, err := volume.NewRegistry(fakePlugin("a/b"), fakePlugin("a/b"))
	require.ErrorContains(t, err, "another plugin has this name")
	registry, err := volume.NewRegistry(fakePlugin("kubernetes.io/empty-dir"))
	require.NoError(t, err)
	plugin, ok := registry.ByDirName("kubernetes.io~empty-dir")
	require.True(t, ok)
	require.Equal(t, "kubernetes.io/empty-dir", plugin.Name())
	_, ok = registry.ByDirName("kubernetes.io~nfs")
	require.False(t, ok)

	empty := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	found, err := registry.Find(volume.Spec{Name: "v", Volume: &empty})
	require.NoError(t, err)
	require.Equal(t, plugin, found)
	nfs := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}
	_, err = registry.Find(volume.Spec{Name: "v", Volume: &nfs})
	var unsupported *volume.UnsupportedError
	require.ErrorAs(t, err, &unsupported)
	require.Equal(t, "spec.volumes[v].nfs", unsupported.Field)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{}
	_, err = registry.Find(volume.Spec{Name: "v", Volume: &empty, PV: pv})
	require.ErrorAs(t, err, &unsupported)
	require.Equal(t, "PersistentVolume[pv-1].spec.csi", unsupported.Field)
}

func TestNamesOnDisk(t *testing.T) {
	require.Equal(t, "/root/pods/u/volumes/a~b/v", volume.Dir("/root", "u", "a/b", "v"))
	require.Equal(t, "v", volume.Spec{Name: "v"}.DirName())
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	require.Equal(t, "pv-1", volume.Spec{Name: "v", PV: pv}.DirName())
	for _, name := range []string{"", ".", "..", "a/b", "../x", "a\x00"} {
		require.Error(t, volume.CheckDirName(name), "%q", name)
	}
	require.NoError(t, volume.CheckDirName("pvc-1.x"))
}

func TestUncertainErrors(t *testing.T) {
	cause := errors.New("deadline exceeded")
	err := fmt.Errorf("stage: %w", volume.Uncertain(cause))
	require.True(t, volume.IsUncertain(err))
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, "stage: deadline exceeded")
	require.False(t, volume.IsUncertain(cause))
	require.NoError(t, volume.Uncertain(nil))
}

// TestExamplePluginMeetsTheContract runs the suite on the plugin of the package's example.
func TestExamplePluginMeetsTheContract(t *testing.T) {
	testsuite.Run(t, testsuite.Subject{
		New: func(*testing.T) volume.Plugin { return greetings{} },
		Spec: func(*testing.T, string) volume.Spec {
			return volume.Spec{Name: "v", Volume: &corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
				FlexVolume: &corev1.FlexVolumeSource{Driver: "example.com/greeting"},
			}}}
		},
	})
}
