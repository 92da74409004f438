package local_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/local"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

func spec(path string) volume.Spec {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: path}
	return volume.Spec{Name: "data", PV: pv}
}

func TestContract(t *testing.T) {
	testsuite.Run(t, testsuite.Subject{
		New:      func(*testing.T) volume.Plugin { return local.New(mounts.Syscalls{}) },
		Spec:     func(_ *testing.T, scratch string) volume.Spec { return spec(scratch) },
		Writable: true, Persistent: true,
	})
}

// newRequest is a volume's directory and a request for it.
func newRequest(t *testing.T) (string, volume.Request, *local.Plugin) {
	t.Helper()
	root := testsuite.Root(t)
	data := filepath.Join(root, "data")
	require.NoError(t, os.Mkdir(data, 0o700))
	request := volume.Request{Pod: &corev1.Pod{}, Spec: spec(data), Dir: volume.Dir(root, "u", local.Name, "pv-1")}
	plugin := local.New(mounts.Syscalls{})
	t.Cleanup(func() { _ = unix.Unmount(request.Dir, unix.MNT_DETACH) })
	return data, request, plugin
}

func TestReadOnly(t *testing.T) {
	_, request, plugin := newRequest(t)
	request.ReadOnly = true
	mount, err := plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.True(t, mount.ReadOnly)
	require.ErrorIs(t, os.WriteFile(filepath.Join(mount.Path, "f"), nil, 0o644), unix.EROFS)
}

func TestGroup(t *testing.T) {
	data, request, plugin := newRequest(t)
	require.NoError(t, os.WriteFile(filepath.Join(data, "f"), nil, 0o600))
	gid := int64(4711)
	request.FSGroup = &gid
	_, err := plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(data, "f"))
	require.NoError(t, err)
	require.EqualValues(t, gid, info.Sys().(*syscall.Stat_t).Gid)
	require.Equal(t, os.FileMode(0o660), info.Mode())
}

// TestGroupOfASharedVolume mounts the volume for a second Pod, of another group, and for a third when the first has ended.
func TestGroupOfASharedVolume(t *testing.T) {
	data, first, plugin := newRequest(t)
	root := filepath.Dir(data)
	owner := func() int64 {
		var stat unix.Stat_t
		require.NoError(t, unix.Stat(data, &stat))
		return int64(stat.Gid)
	}
	var kept []int64
	as := func(uid types.UID, gid int64) volume.Request {
		request := first
		request.Dir, request.FSGroup = volume.Dir(root, uid, local.Name, "pv-1"), &gid
		request.OnOwnershipKept = func(gid int64) { kept = append(kept, gid) }
		t.Cleanup(func() { _ = unix.Unmount(request.Dir, unix.MNT_DETACH) })
		return request
	}
	first, second := as("a", 1001), as("b", 1002)
	for _, request := range []volume.Request{first, second, second, first} { // again as after a restart
		_, err := plugin.SetUp(t.Context(), request)
		require.NoError(t, err)
		require.EqualValues(t, 1001, owner())
	}
	require.Equal(t, []int64{1001}, kept)
	require.NoError(t, plugin.TearDown(t.Context(), first.Dir))
	require.NoError(t, plugin.TearDown(t.Context(), second.Dir))
	_, err := plugin.SetUp(t.Context(), second)
	require.NoError(t, err)
	require.EqualValues(t, 1002, owner())
	require.Len(t, kept, 1)
}

// TestDiskThatKubernetesKubeletHasMounted ends two Pods that the other kubelet has started, which mounts the disk once and binds it for each.
func TestDiskThatKubernetesKubeletHasMounted(t *testing.T) {
	root := testsuite.Root(t)
	shared := filepath.Join(root, "plugins/kubernetes.io/local-volume/mounts/pv-1")
	require.NoError(t, os.MkdirAll(shared, 0o750))
	require.NoError(t, unix.Mount("tmpfs", shared, "tmpfs", 0, ""))
	plugin := local.New(mounts.Syscalls{})
	dirs := []string{volume.Dir(root, "a", local.Name, "pv-1"), volume.Dir(root, "b", local.Name, "pv-1")}
	for _, dir := range dirs {
		require.NoError(t, os.MkdirAll(dir, 0o750))
		require.NoError(t, unix.Mount(shared, dir, "", unix.MS_BIND, ""))
	}
	require.NoError(t, plugin.TearDown(t.Context(), dirs[0]))
	mounted, err := mounts.Syscalls{}.IsMountPoint(shared)
	require.NoError(t, err)
	require.True(t, mounted, "the other Pod uses it")
	for range 2 {
		require.NoError(t, plugin.TearDown(t.Context(), dirs[1]))
		require.NoDirExists(t, shared)
	}
}

func TestReplacedDirectoryIsMountedAnew(t *testing.T) {
	data, request, plugin := newRequest(t)
	_, err := plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.NoError(t, os.Rename(data, data+".old"))
	require.NoError(t, os.Mkdir(data, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, "new"), nil, 0o600))
	mount, err := plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(mount.Path, "new"))
}

func TestRefusals(t *testing.T) {
	data, request, plugin := newRequest(t)
	file := filepath.Join(filepath.Dir(data), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, test := range map[string]struct {
		change func(*volume.Request)
		err    string
	}{
		"missing": {func(r *volume.Request) { r.Spec = spec(data + "/missing") }, "no such file"},
		"file":    {func(r *volume.Request) { r.Spec = spec(file) }, "is not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := request
			changed.Spec = spec(data)
			test.change(&changed)
			_, err := plugin.SetUp(t.Context(), changed)
			require.ErrorContains(t, err, test.err)
			require.ErrorContains(t, err, "pv-1")
			require.NoDirExists(t, changed.Dir)
		})
	}
}
