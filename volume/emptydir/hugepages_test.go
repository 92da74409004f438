package emptydir_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/emptydir"
	"github.com/berth-dev/berth/volume/testsuite"
)

// podRequesting is a Pod that requests huge pages of these sizes.
func podRequesting(sizes ...string) *corev1.Pod {
	requests := corev1.ResourceList{}
	for _, size := range sizes {
		requests[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = resource.MustParse("1Gi")
	}
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Resources: corev1.ResourceRequirements{Requests: requests, Limits: requests}}}}}
}

func TestHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/hugepages/hugepages-2048kB"); err != nil {
		t.Skip("this kernel has no huge pages of 2 MiB")
	}
	const hugetlbfs = 0x958458f6
	for _, medium := range []corev1.StorageMedium{corev1.StorageMediumHugePages, "HugePages-2Mi"} {
		t.Run(string(medium), func(t *testing.T) {
			path, err := setUp(t, spec(corev1.EmptyDirVolumeSource{Medium: medium}), podRequesting("2Mi"), nil)
			require.NoError(t, err)
			var fs unix.Statfs_t
			require.NoError(t, unix.Statfs(path, &fs))
			require.EqualValues(t, hugetlbfs, fs.Type)
			require.EqualValues(t, 2<<20, fs.Bsize, "pages of the size that was asked for")
		})
	}
	t.Run("suite", func(t *testing.T) {
		pages := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("2Mi")}
		testsuite.Run(t, testsuite.Subject{
			New: func(*testing.T) volume.Plugin { return newPlugin() },
			Spec: func(*testing.T, string) volume.Spec {
				return spec(corev1.EmptyDirVolumeSource{Medium: "HugePages-2Mi"})
			},
			Resources: corev1.ResourceRequirements{Requests: pages, Limits: pages},
		})
	})
}

func TestHugePagesThatCannotBe(t *testing.T) {
	for medium, test := range map[corev1.StorageMedium]struct {
		pod *corev1.Pod
		err string
	}{
		"HugePages":      {podRequesting(), "exactly one size"},
		"HugePages-2Mi":  {podRequesting("1Gi"), "no container of the Pod requests hugepages-2Mi"},
		"HugePages-huge": {podRequesting("2Mi"), "is not a page size"},
		"HugePages-3Mi":  {podRequesting("3Mi"), "does the kernel have pages of this size?"},
	} {
		_, err := setUp(t, spec(corev1.EmptyDirVolumeSource{Medium: medium}), test.pod, nil)
		require.ErrorContains(t, err, test.err)
		require.ErrorContains(t, err, `emptyDir "data"`)
	}
	require.True(t, emptydir.SupportsMedium("HugePages-1Gi"))
	require.False(t, emptydir.SupportsMedium("Tape"))
}
