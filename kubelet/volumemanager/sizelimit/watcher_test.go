package sizelimit_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/volumemanager/sizelimit"
	"github.com/berth-dev/berth/volume"
)

func TestLimitOf(t *testing.T) {
	spec := func(source corev1.VolumeSource) volume.Spec {
		return volume.Spec{Name: "v", Volume: &corev1.Volume{Name: "v", VolumeSource: source}}
	}
	emptyDir := func(medium corev1.StorageMedium, limit *resource.Quantity) volume.Spec {
		return spec(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium, SizeLimit: limit}})
	}
	mebibyte := ptr.To(resource.MustParse("1Mi"))
	limited, ok := sizelimit.LimitOf("uid", emptyDir("", mebibyte), "/dir")
	require.True(t, ok)
	require.Equal(t, sizelimit.Volume{PodUID: "uid", Name: "v", Dir: "/dir", Limit: 1 << 20, LimitText: "1Mi"}, limited)
	for name, spec := range map[string]volume.Spec{
		"no limit":           emptyDir("", nil),
		"limit of 0":         emptyDir("", ptr.To(resource.MustParse("0"))),
		"in memory":          emptyDir(corev1.StorageMediumMemory, mebibyte),
		"another source":     spec(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}),
		"a PersistentVolume": {Name: "v", PV: &corev1.PersistentVolume{}},
	} {
		_, ok := sizelimit.LimitOf("uid", spec, "/dir")
		require.False(t, ok, name)
	}
}
