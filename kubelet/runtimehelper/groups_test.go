package runtimehelper

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume"
)

func TestSupplementalGroupsOfVolumes(t *testing.T) {
	of := func(gid string) volumemanager.Mounted {
		return volumemanager.Mounted{Spec: volume.Spec{PV: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{volumeGroupAnnotation: gid}},
		}}}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{SupplementalGroups: []int64{7}}}}
	require.Equal(t, []int64{5, 9}, supplementalGroups(pod, map[string]volumemanager.Mounted{
		"a": of("9"), "b": of("5"), "c": of("9"), "own": of("7"), "root": of("0"), "bad": of("x"), "plain": {},
	}))
	require.Nil(t, supplementalGroups(&corev1.Pod{}, nil))
}
