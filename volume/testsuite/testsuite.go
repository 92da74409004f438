// Package testsuite tests a volume plugin against the contract of volume.Plugin, with real directories and real
// mounts. A plugin's own tests call Run and add what is specific to the plugin.
package testsuite

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/mounts"
)

// Subject is a plugin under test.
type Subject struct {
	// New returns the plugin. A test that simulates a restart of the process calls it again.
	New func(t *testing.T) volume.Plugin
	// Spec is a volume that can be set up; scratch is an empty directory outside of the Pod's, for the volume's
	// backing. It is called once per test.
	Spec func(t *testing.T, scratch string) volume.Spec
	// Writable means that containers may write to the volume.
	Writable bool
	// Persistent means that what they write outlives the Pod.
	Persistent bool
	// Resources are the resources of the Pod's container, for plugins that use them.
	Resources corev1.ResourceRequirements
	// NoDir means that the plugin creates nothing at Request.Dir.
	NoDir bool
}

// Root returns a new temporary directory that the test may mount in. When the test ends, nothing may be mounted there
// and no block device pinned. The test is skipped if the process may not mount.
func Root(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root: run the tests as root")
	}
	root := t.TempDir()
	t.Cleanup(func() {
		pinner := blockpin.New(blockpin.Deps{})
		pinned, err := pinner.ListBelow(root)
		require.NoError(t, err)
		for _, path := range pinned {
			_ = pinner.Unpin(context.WithoutCancel(t.Context()), path)
		}
		left, err := mounts.ListBelow(root)
		require.NoError(t, err)
		for _, path := range left {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
		if !t.Failed() {
			require.Empty(t, pinned, "block devices still pinned")
			require.Empty(t, left, "mounts left behind")
		}
	})
	return root
}

// deviceSize is the size of a BlockDevice in bytes.
const deviceSize = 1 << 20

// BlockDevice returns the path of a new blank block device. The test is skipped if the process may not create one.
func BlockDevice(t testing.TB) string {
	t.Helper()
	return loopdev.New().Path(LoopDevice(t).Number)
}

// LoopDevice is BlockDevice for tests that detach the device themselves.
func LoopDevice(t testing.TB) loopdev.Device {
	t.Helper()
	image, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)
	defer image.Close()
	require.NoError(t, image.Truncate(deviceSize))
	loops := loopdev.New()
	device, err := loops.Attach(image, loopdev.Options{})
	if err != nil {
		t.Skipf("create a block device: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, loops.Detach(device)) })
	return device
}

// DeviceDir returns a new directory for device nodes, which cannot be opened in a temporary directory of a machine that mounts those
// with nodev.
func DeviceDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev", "berth-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// Pod returns a Pod with this UID and the volume.
func Pod(uid types.UID, spec volume.Spec) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-" + string(uid), Namespace: "default", UID: uid}}
	if spec.Volume != nil {
		pod.Spec.Volumes = []corev1.Volume{*spec.Volume}
	}
	return pod
}

// fixture is the state of one test.
type fixture struct {
	Subject
	root   string
	spec   volume.Spec
	plugin volume.Plugin
}

func (s Subject) newFixture(t *testing.T) *fixture {
	t.Helper()
	root := Root(t)
	scratch := filepath.Join(root, "scratch")
	require.NoError(t, os.Mkdir(scratch, 0o755))
	f := &fixture{Subject: s, root: root, spec: s.Spec(t, scratch), plugin: s.New(t)}
	t.Cleanup(func() {
		require.NoDirExists(t, f.request("a").Dir, "a volume was left behind")
	})
	return f
}

func (f *fixture) request(uid types.UID) volume.Request {
	pod := Pod(uid, f.spec)
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: f.Resources}}
	return volume.Request{
		Pod: pod, Spec: f.spec,
		Dir: volume.Dir(f.root, uid, f.plugin.Name(), f.spec.DirName()),
	}
}

func (f *fixture) setUp(t *testing.T, request volume.Request) volume.Mount {
	t.Helper()
	mount, err := f.plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	return mount
}

func (f *fixture) tearDown(t *testing.T, request volume.Request) {
	t.Helper()
	require.NoError(t, f.plugin.TearDown(t.Context(), request.Dir))
	_, err := os.Lstat(request.Dir)
	require.ErrorIs(t, err, os.ErrNotExist, "TearDown must leave nothing")
}

// Run runs the suite.
func Run(t *testing.T, subject Subject) {
	t.Run("Name", subject.testName)
	t.Run("SetUpAndTearDown", subject.testSetUpAndTearDown)
	t.Run("Idempotence", subject.testIdempotence)
	t.Run("TearDownMissing", subject.testTearDownMissing)
	t.Run("CrashRecovery", subject.testCrashRecovery)
	t.Run("DataLifetime", subject.testDataLifetime)
	t.Run("StopsAtMounts", subject.testStopsAtMounts)
	t.Run("ManyPods", subject.testManyPods)
	t.Run("CancelledContext", subject.testCancelledContext)
}

func (s Subject) testName(t *testing.T) {
	f := s.newFixture(t)
	require.Regexp(t, `^[a-z0-9.-]+/[a-z0-9-]+$`, f.plugin.Name())
	require.Equal(t, f.plugin.Name(), s.New(t).Name(), "the name is part of the format on disk")
	require.True(t, f.plugin.CanSupport(f.spec))
	require.False(t, f.plugin.CanSupport(volume.Spec{}))
	require.False(t, f.plugin.CanSupport(volume.Spec{Name: "x", Volume: &corev1.Volume{Name: "x"}}))
	require.False(t, f.plugin.CanSupport(volume.Spec{Name: "x", PV: &corev1.PersistentVolume{}}))
}

func (s Subject) testSetUpAndTearDown(t *testing.T) {
	f := s.newFixture(t)
	request := f.request("a")
	mount := f.setUp(t, request)
	require.True(t, filepath.IsAbs(mount.Path))
	_, err := os.Stat(mount.Path)
	require.NoError(t, err, "the path must exist")
	if s.NoDir {
		require.NoDirExists(t, request.Dir)
	} else {
		below := mount.Path == request.Dir || filepath.Dir(mount.Path) == request.Dir
		require.True(t, below, "%s must be the volume's directory or in it", mount.Path)
	}
	f.tearDown(t, request)
}

func (s Subject) testIdempotence(t *testing.T) {
	f := s.newFixture(t)
	request := f.request("a")
	first := f.setUp(t, request)
	if s.Writable {
		require.NoError(t, os.WriteFile(filepath.Join(first.Path, "written"), []byte("by the pod"), 0o644))
	}
	mountedOnce, err := mounts.ListBelow(f.root)
	require.NoError(t, err)
	second := f.setUp(t, request)
	require.Equal(t, first, second)
	mountedTwice, err := mounts.ListBelow(f.root)
	require.NoError(t, err)
	require.Equal(t, mountedOnce, mountedTwice, "the second SetUp must not mount again")
	if s.Writable {
		data, err := os.ReadFile(filepath.Join(second.Path, "written"))
		require.NoError(t, err, "SetUp must keep what the Pod has written")
		require.Equal(t, "by the pod", string(data))
	}
	f.tearDown(t, request)
	f.tearDown(t, request)
	f.setUp(t, request)
	f.tearDown(t, request)
}

func (s Subject) testTearDownMissing(t *testing.T) {
	f := s.newFixture(t)
	request := f.request("a")
	f.tearDown(t, request)
	require.NoError(t, os.MkdirAll(request.Dir, 0o750))
	f.tearDown(t, request) // left by a SetUp that was killed right after
}

func (s Subject) testCrashRecovery(t *testing.T) {
	f := s.newFixture(t)
	request := f.request("a")
	if !s.NoDir {
		require.NoError(t, os.MkdirAll(filepath.Dir(request.Dir), 0o750))
	}
	mount := f.setUp(t, request)
	f.plugin = s.New(t)
	require.Equal(t, mount, f.setUp(t, request), "a new process must find the volume as it is")
	f.plugin = s.New(t)
	f.tearDown(t, request)
	// As after a reboot: the directory exists, the mounts do not.
	f.setUp(t, request)
	require.NoError(t, mounts.UnmountAll(t.Context(), mounts.Syscalls{}, f.root))
	f.plugin = s.New(t)
	f.setUp(t, request)
	f.tearDown(t, request)
}

func (s Subject) testDataLifetime(t *testing.T) {
	if !s.Writable {
		t.Skip("containers cannot write to this volume")
	}
	f := s.newFixture(t)
	request := f.request("a")
	mount := f.setUp(t, request)
	require.NoError(t, os.WriteFile(filepath.Join(mount.Path, "written"), nil, 0o644))
	f.tearDown(t, request)
	mount = f.setUp(t, request)
	_, err := os.Stat(filepath.Join(mount.Path, "written"))
	if s.Persistent {
		require.NoError(t, err, "what was written must be kept")
	} else {
		require.ErrorIs(t, err, os.ErrNotExist, "what was written must be removed with the Pod")
	}
	f.tearDown(t, request)
}

func (s Subject) testStopsAtMounts(t *testing.T) {
	if !s.Writable || s.NoDir {
		t.Skip("containers cannot mount below this volume")
	}
	f := s.newFixture(t)
	request := f.request("a")
	outside := filepath.Join(f.root, "outside")
	require.NoError(t, os.Mkdir(outside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o644))
	mount := f.setUp(t, request)
	below := filepath.Join(mount.Path, "below")
	require.NoError(t, os.Mkdir(below, 0o755))
	require.NoError(t, mounts.Syscalls{}.Mount(outside, below, "", []string{"bind"}))
	err := f.plugin.TearDown(t.Context(), request.Dir)
	require.FileExists(t, filepath.Join(outside, "precious"), "nothing may be removed through a mount point")
	if err != nil { // it may fail, then it must succeed after the unmount
		require.NoError(t, mounts.UnmountAll(t.Context(), mounts.Syscalls{}, request.Dir))
	}
	f.tearDown(t, request)
}

func (s Subject) testManyPods(t *testing.T) {
	f := s.newFixture(t)
	var wg sync.WaitGroup
	for _, uid := range []types.UID{"a", "b", "c", "d", "e", "f", "g", "h"} {
		wg.Go(func() {
			request := f.request(uid)
			for range 5 {
				if _, err := f.plugin.SetUp(t.Context(), request); err != nil {
					t.Errorf("set up for %s: %v", uid, err)
				}
				if err := f.plugin.TearDown(t.Context(), request.Dir); err != nil {
					t.Errorf("tear down for %s: %v", uid, err)
				}
			}
		})
	}
	wg.Wait()
}

func (s Subject) testCancelledContext(t *testing.T) {
	f := s.newFixture(t)
	request := f.request("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = f.plugin.SetUp(ctx, request) // it may succeed or fail, but what it leaves must be removable
	f.tearDown(t, request)
}
