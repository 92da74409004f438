package allocation_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/faulttest"
	"github.com/berth-dev/berth/internal/statefile/corrupt"
	"github.com/berth-dev/berth/kubelet/allocation"
)

func TestMain(m *testing.M) {
	faulttest.Main(faults()...)
	goleak.VerifyTestMain(m)
}

// upstreamFile is what upstream's kubelet, v1.36.3, writes for the Pod that sized makes.
const upstreamFile = `{"data":"{\"entries\":{\"u-1\":{\"ContainerResources\":{\"app\":{\"limits\":{\"cpu\":\"500m\",\"memory\":` +
	`\"64Mi\"},\"requests\":{\"cpu\":\"500m\",\"memory\":\"64Mi\"}}},\"PodLevelResources\":null}}}","checksum":1741942974}`

func sized(cpu string) *corev1.Pod {
	list := corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("64Mi")}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u-1"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"}},
		Containers:     []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}},
	}}
}

// run does something to a Store that writes, and returns when all is written.
func run(t *testing.T, dir string, do func(s *allocation.Store)) (logger string) {
	t.Helper()
	var out bytes.Buffer
	s := allocation.Open(dir, slog.New(slog.NewTextHandler(&out, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Start(ctx) }()
	do(s)
	cancel()
	require.NoError(t, <-done)
	return out.String()
}

func TestFilesAreUpstreams(t *testing.T) {
	dir := t.TempDir()
	pod := sized("500m")
	require.Empty(t, run(t, dir, func(s *allocation.Store) {
		require.Nil(t, s.Allocated(pod), "nothing was noted")
		s.Allocate(pod)
		s.Actuate(pod, "app")
		s.Actuate(pod, "init") // cannot be resized, and is not in the files
	}))
	for _, name := range []string{allocation.AllocatedFile, allocation.ActuatedFile} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, upstreamFile, string(content), name)
	}
	require.Empty(t, run(t, dir, func(s *allocation.Store) {
		require.Same(t, pod, s.Allocated(pod))
		require.False(t, s.HasPendingActuation(pod))
	}))
}

// TestSpecIsNotAllocation changes the spec while no kubelet runs.
func TestSpecIsNotAllocation(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, func(s *allocation.Store) { s.Allocate(sized("500m")); s.Actuate(sized("500m"), "app") })
	wish := sized("8")
	whole := corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("9")}}
	run(t, dir, func(s *allocation.Store) {
		granted := s.Allocated(wish)
		require.Equal(t, "500m", granted.Spec.Containers[0].Resources.Requests.Cpu().String())
		require.Equal(t, "8", wish.Spec.Containers[0].Resources.Requests.Cpu().String(), "the caller's own")
		require.False(t, s.HasPendingActuation(granted))
		wish.Spec.Resources = &whole
		s.Allocate(wish)
	})
	run(t, dir, func(s *allocation.Store) {
		granted := s.Allocated(sized("1"))
		require.Equal(t, "8", granted.Spec.Containers[0].Resources.Requests.Cpu().String())
		require.Equal(t, "9", granted.Spec.Resources.Limits.Cpu().String())
		require.True(t, s.HasPendingActuation(granted), "allocated, and a crash came before it was actuated")
		s.Actuate(granted, "app")
		require.True(t, s.HasPendingActuation(granted), "the cgroup of the Pod follows its containers")
		s.ActuatePod(granted)
		require.False(t, s.HasPendingActuation(granted))
	})
}

// TestWholePodIsRecorded changes the resources of a Pod as a whole alone, and adds them to a Pod that had none.
func TestWholePodIsRecorded(t *testing.T) {
	limit := func(cpu string) *corev1.Pod {
		pod := sized("500m")
		pod.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
		return pod
	}
	dir := t.TempDir()
	run(t, dir, func(s *allocation.Store) {
		s.ActuatePod(limit("1"))
		s.Allocate(limit("1"))
		s.Actuate(limit("1"), "app")
		require.False(t, s.HasPendingActuation(limit("1")), "a new Pod's cgroup has its resources before the first container")
		s.Allocate(limit("2"))
		require.True(t, s.HasPendingActuation(limit("2")))
	})
	run(t, dir, func(s *allocation.Store) {
		require.True(t, s.HasPendingActuation(s.Allocated(limit("3"))))
		s.ActuatePod(limit("2"))
		require.False(t, s.HasPendingActuation(s.Allocated(limit("3"))))
		s.Allocate(sized("500m"))
		require.Nil(t, s.Allocated(limit("4")).Spec.Resources, "none were allocated")
	})
}

func TestFileThatIsWrongIsDiscarded(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "cut off": upstreamFile[:50], "not JSON": "\x00\x01", "other checksum": upstreamFile[:len(upstreamFile)-2] + "5}",
		"no list": `{"data":"7","checksum":0}`, "an array": `[]`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, allocation.AllocatedFile)
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			logger := run(t, dir, func(s *allocation.Store) {
				require.Nil(t, s.Allocated(sized("1")))
				s.Allocate(sized("500m"))
			})
			require.Contains(t, logger, "set aside a damaged state file")
			require.Contains(t, logger, path)
			got, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, upstreamFile, string(got), "the file is valid again")
			kept, err := os.ReadFile(path + ".damaged")
			require.NoError(t, err)
			require.Equal(t, content, string(kept))
		})
	}
	corrupt.Each(t, func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), allocation.AllocatedFile)
		require.NoError(t, os.WriteFile(path, []byte(upstreamFile), 0o600))
		return path
	}, func(t *testing.T, way, path string) {
		run(t, filepath.Dir(path), func(s *allocation.Store) { s.Allocate(sized("500m")) })
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, upstreamFile, string(got), "the file is valid again")
	})
}

func TestRetainAndForget(t *testing.T) {
	dir := t.TempDir()
	other := sized("1")
	other.UID = "u-2"
	run(t, dir, func(s *allocation.Store) {
		s.Allocate(sized("1"))
		s.Allocate(other)
		s.Actuate(other, "app")
	})
	run(t, dir, func(s *allocation.Store) { s.Retain(func(uid types.UID) bool { return uid == "u-1" }) })
	run(t, dir, func(s *allocation.Store) {
		require.NotNil(t, s.Allocated(sized("1")))
		require.Nil(t, s.Allocated(other))
		s.Forget("u-1")
	})
	content, err := os.ReadFile(filepath.Join(dir, allocation.AllocatedFile))
	require.NoError(t, err)
	require.NotContains(t, string(content), "u-")
}

// TestWritesWithoutAnEnd has the file appear while Start goes on.
func TestWritesWithoutAnEnd(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, func(s *allocation.Store) {
		s.Allocate(sized("500m"))
		require.Eventually(t, func() bool {
			content, err := os.ReadFile(filepath.Join(dir, allocation.AllocatedFile))
			return err == nil && string(content) == upstreamFile
		}, time.Minute, time.Millisecond)
	})
}
