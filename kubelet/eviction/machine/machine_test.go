package machine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/node"
)

// runtime names directories as the file systems of images and writable layers.
type runtime struct {
	images, containers string
	calls              int
}

func (r *runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error) {
	r.calls++
	fs := func(dir string) []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir}}}
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: fs(r.images), ContainerFilesystems: fs(r.containers)}, nil
}

func newMachine(t *testing.T, root string, r *runtime, pods cm.Dirs) *Machine {
	t.Helper()
	m, err := New(Deps{
		Node: node.NewLinuxMachine("/", root), Runtime: r, PodsCgroup: func() (cm.Dirs, error) { return pods, nil }, RootDir: root,
		Clock: clock.RealClock{},
	})
	require.NoError(t, err)
	return m
}

// TestObserveThisMachine has a tmpfs as a second file system, and the files of a cgroup.
func TestObserveThisMachine(t *testing.T) {
	here, other := t.TempDir(), "/dev/shm"
	for file, content := range map[string]string{
		"memory.limit_in_bytes": "1000\n", "memory.usage_in_bytes": "600\n", "memory.stat": "cache 300\ntotal_inactive_file 200\n",
		"memory.max": "max\n", "memory.current": "600\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(here, file), []byte(content), 0o600))
	}
	for _, test := range []struct {
		images, containers string
		want               eviction.Layout
	}{{here, here, eviction.Layout{}}, {other, other, eviction.Layout{Images: true}}, {other, here, eviction.Layout{Images: true, Containers: true}}} {
		r := &runtime{images: test.images, containers: test.containers}
		m := newMachine(t, here, r, cm.Dirs{Memory: here})
		observed, layout, err := m.Observe(t.Context())
		require.NoError(t, err)
		require.Equal(t, test.want, layout)
		for _, signal := range []eviction.Signal{eviction.MemoryAvailable, eviction.NodeFsAvailable, eviction.PIDAvailable, eviction.ImageFsAvailable, eviction.ContainerFsAvailable} {
			require.Positive(t, observed[signal].Available, signal)
			require.GreaterOrEqual(t, observed[signal].Capacity, observed[signal].Available, signal)
		}
		require.EqualValues(t, 600, observed[eviction.AllocatableMemoryAvailable].Available)
		require.EqualValues(t, 1000, observed[eviction.AllocatableMemoryAvailable].Capacity)
		_, _, err = m.Observe(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, r.calls, "the runtime is asked once")
	}
	unlimited, _, err := newMachine(t, here, &runtime{here, here, 0}, cm.Dirs{Memory: here, Unified: true}).Observe(t.Context())
	require.NoError(t, err)
	require.NotContains(t, unlimited, eviction.AllocatableMemoryAvailable)
}

// TestWorkingSetOfTheMachine has the files of a root cgroup of either version.
func TestWorkingSetOfTheMachine(t *testing.T) {
	here, root := t.TempDir(), t.TempDir()
	m := newMachine(t, here, &runtime{here, here, 0}, cm.Dirs{})
	m.memoryRoot = ""
	unified, _, err := m.Observe(t.Context())
	require.NoError(t, err)
	usage, err := m.deps.Node.Usage()
	require.NoError(t, err)
	require.InDelta(t, usage.MemoryAvailable, unified[eviction.MemoryAvailable].Available, float64(m.memory)/4)

	m.memoryRoot = root
	_, _, err = m.Observe(t.Context())
	require.ErrorContains(t, err, "measure memory")
	for file, content := range map[string]string{"memory.usage_in_bytes": "600\n", "memory.stat": "cache 300\ntotal_inactive_file 200\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(content), 0o600))
	}
	observed, _, err := m.Observe(t.Context())
	require.NoError(t, err)
	require.Equal(t, m.memory-400, observed[eviction.MemoryAvailable].Available)
}

func TestMissingFileSystemIsNamed(t *testing.T) {
	here := t.TempDir()
	m := newMachine(t, here, &runtime{images: "/not/here", containers: "/not/here"}, cm.Dirs{})
	observed, _, err := m.Observe(t.Context())
	require.ErrorContains(t, err, `find the file system of "/not/here"`)
	require.Contains(t, observed, eviction.NodeFsAvailable, "what can be measured is")
	free, layersHere, err := m.Free(t.Context())
	require.NoError(t, err)
	require.Positive(t, free)
	require.True(t, layersHere)
}

// TestKernelReportsTheUseOfMemory allocates memory until the kernel reports it.
func TestKernelReportsTheUseOfMemory(t *testing.T) {
	here := t.TempDir()
	m := newMachine(t, here, &runtime{images: here, containers: here}, cm.Dirs{})
	if m.memoryRoot == "" || os.Getuid() != 0 {
		t.Skip("needs root and cgroup v1")
	}
	require.False(t, m.Arm(eviction.MemoryAvailable, 1), "it is not watched yet")
	ctx, cancel := context.WithCancel(t.Context())
	reports, done := make(chan struct{}, 1), make(chan error)
	go func() {
		done <- m.Watch(ctx, func() {
			select {
			case reports <- struct{}{}:
			default:
			}
		})
	}()
	const distance = 32 << 20
	require.Eventually(t, func() bool { return m.Arm(eviction.MemoryAvailable, distance) }, time.Minute, time.Millisecond)
	require.False(t, m.Arm(eviction.NodeFsAvailable, distance), "file systems have no events")
	memory, err := unix.Mmap(-1, 0, 8*distance, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	select {
	case <-reports:
	case <-time.After(time.Minute):
		require.Fail(t, "the kernel has not reported the use of memory")
	}
	require.NoError(t, unix.Munmap(memory))
	cancel()
	require.NoError(t, <-done)
	require.False(t, m.Arm(eviction.MemoryAvailable, distance), "it is not watched any more")
}

// BenchmarkObserve is the cost of one measurement, of which an idle node has one each 10 s.
func BenchmarkObserve(b *testing.B) {
	here := b.TempDir()
	m, err := New(Deps{
		Node: node.NewLinuxMachine("/", here), Runtime: &runtime{images: here, containers: here},
		PodsCgroup: func() (cm.Dirs, error) { return cm.Dirs{}, nil }, RootDir: here, Clock: clock.RealClock{},
	})
	require.NoError(b, err)
	for b.Loop() {
		_, _, err := m.Observe(b.Context())
		require.NoError(b, err)
	}
}

// failing is a machine that cannot be measured.
type failing struct{ node.Machine }

func (failing) Usage() (node.Usage, error) { return node.Usage{}, errors.New("too many open files") }

// TestLayoutIsKnownWithoutAMeasurement: thresholds of another layout would begin anew.
func TestLayoutIsKnownWithoutAMeasurement(t *testing.T) {
	here, other := t.TempDir(), "/dev/shm"
	m := newMachine(t, here, &runtime{images: other, containers: other}, cm.Dirs{})
	_, want, err := m.Observe(t.Context())
	require.NoError(t, err)
	require.True(t, want.Images)
	m.deps.Node = failing{m.deps.Node}
	observed, layout, err := m.Observe(t.Context())
	require.ErrorContains(t, err, "too many open files")
	require.Empty(t, observed)
	require.Equal(t, want, layout)
}
