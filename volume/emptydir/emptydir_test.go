package emptydir_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/emptydir"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

func newPlugin() *emptydir.Plugin {
	return emptydir.New(emptydir.Deps{Mounter: mounts.Syscalls{}, NodeAllocatable: func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	}})
}

func spec(source corev1.EmptyDirVolumeSource) volume.Spec {
	return volume.Spec{Name: "data", Volume: &corev1.Volume{
		Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &source}}}
}

func TestContract(t *testing.T) {
	for name, medium := range map[string]corev1.StorageMedium{"disk": "", "memory": corev1.StorageMediumMemory} {
		t.Run(name, func(t *testing.T) {
			testsuite.Run(t, testsuite.Subject{
				New: func(*testing.T) volume.Plugin { return newPlugin() },
				Spec: func(*testing.T, string) volume.Spec {
					return spec(corev1.EmptyDirVolumeSource{Medium: medium})
				},
				Writable: true,
			})
		})
	}
}

func setUp(t *testing.T, spec volume.Spec, pod *corev1.Pod, gid *int64) (string, error) {
	t.Helper()
	root := testsuite.Root(t)
	request := volume.Request{Pod: pod, Spec: spec, FSGroup: gid, Dir: volume.Dir(root, "u", emptydir.Name, "data")}
	mount, err := newPlugin().SetUp(t.Context(), request)
	t.Cleanup(func() {
		_ = unix.Unmount(request.Dir, 0)
	})
	return mount.Path, err
}

func TestModeAndGroup(t *testing.T) {
	gid := int64(777)
	for medium, sticky := range map[corev1.StorageMedium]os.FileMode{"": 0, corev1.StorageMediumMemory: os.ModeSticky} {
		path, err := setUp(t, spec(corev1.EmptyDirVolumeSource{Medium: medium}), &corev1.Pod{}, nil)
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.ModeDir|sticky|0o777, info.Mode())
		path, err = setUp(t, spec(corev1.EmptyDirVolumeSource{Medium: medium}), &corev1.Pod{}, &gid)
		require.NoError(t, err)
		info, err = os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.ModeDir|os.ModeSetgid|sticky|0o777, info.Mode())
		require.EqualValues(t, 777, info.Sys().(*syscall.Stat_t).Gid)
	}
}

func TestModeThatThePodSetStays(t *testing.T) {
	path, err := setUp(t, spec(corev1.EmptyDirVolumeSource{}), &corev1.Pod{}, nil)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o700))
	_, err = newPlugin().SetUp(t.Context(), volume.Request{Pod: &corev1.Pod{}, Spec: spec(corev1.EmptyDirVolumeSource{}), Dir: path})
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, info.Mode())
}

func TestUnfinishedDirectoryIsFinished(t *testing.T) {
	dir := filepath.Join(testsuite.Root(t), "data")
	require.NoError(t, os.Mkdir(dir, 0))
	_, err := newPlugin().SetUp(t.Context(), volume.Request{Pod: &corev1.Pod{}, Spec: spec(corev1.EmptyDirVolumeSource{}), Dir: dir})
	require.NoError(t, err)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o777, info.Mode())
}

func TestSizeInMemoryIsTheSmallestBound(t *testing.T) {
	container := func(limit string) corev1.Container {
		if limit == "" {
			return corev1.Container{}
		}
		return corev1.Container{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}}}
	}
	memory := func(amount string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(amount)}
	}
	quantity := resource.MustParse("1Mi")
	for _, test := range []struct {
		name       string
		containers []corev1.Container
		limit      *resource.Quantity
		ofPod      string // its own limit
		want       int64
	}{
		{"node", []corev1.Container{container("")}, nil, "", 64 << 20},
		{"volume", []corev1.Container{container("")}, &quantity, "", 1 << 20},
		{"containers", []corev1.Container{container("2Mi"), container("3Mi")}, nil, "", 6 << 20},
		{"one container without limit", []corev1.Container{container("2Mi"), container("")}, nil, "", 64 << 20},
		{"one container with the limit zero", []corev1.Container{container("2Mi"), container("0")}, nil, "", 64 << 20},
		{"volume below pod", []corev1.Container{container("2Mi")}, &quantity, "", 1 << 20},
		{"pod", []corev1.Container{container("2Mi")}, nil, "3Mi", 4 << 20},
		{"pod without limit", []corev1.Container{container("2Mi")}, nil, "0", 3 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			source := corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: test.limit}
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: test.containers, Overhead: memory("1Mi")}}
			if test.ofPod != "" {
				pod.Spec.Resources = &corev1.ResourceRequirements{Limits: memory(test.ofPod)}
			}
			path, err := setUp(t, spec(source), pod, nil)
			require.NoError(t, err)
			var stat unix.Statfs_t
			require.NoError(t, unix.Statfs(path, &stat))
			require.Equal(t, test.want, int64(stat.Blocks)*stat.Bsize)
		})
	}
}
