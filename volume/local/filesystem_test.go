package local_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/local"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

// disk is a loop device over a blank file in dir. The test is skipped where there are none.
func disk(t *testing.T, dir string) string {
	t.Helper()
	for _, program := range []string{"mkfs.ext4", "blkid", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("this machine has no %s", program)
		}
	}
	image, err := os.Create(filepath.Join(dir, "disk.img"))
	require.NoError(t, err)
	defer image.Close()
	require.NoError(t, image.Truncate(32<<20))
	loops := loopdev.New()
	device, err := loops.Attach(image, loopdev.Options{})
	if err != nil {
		t.Skipf("this machine has no free loop device: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, loops.Detach(device)) })
	return loops.Path(device.Number)
}

func TestContractOfDisks(t *testing.T) {
	testsuite.Run(t, testsuite.Subject{
		New:      func(*testing.T) volume.Plugin { return local.New(mounts.Syscalls{}) },
		Spec:     func(t *testing.T, scratch string) volume.Spec { return spec(disk(t, scratch)) },
		Writable: true, Persistent: true,
	})
}

func TestDiskIsFormattedOnceAndShared(t *testing.T) {
	root := testsuite.Root(t)
	device := disk(t, t.TempDir())
	plugin := local.New(mounts.Syscalls{})
	request := func(uid string) volume.Request {
		return volume.Request{Pod: testsuite.Pod("u", spec(device)), Spec: spec(device),
			Dir: volume.Dir(root, "u"+"-"+"x", local.Name+uid, "pv-1")}
	}
	writer, reader := request("a"), request("b")
	reader.ReadOnly, reader.Spec.PV.Spec.MountOptions = true, []string{"noexec"}
	first, err := plugin.SetUp(t.Context(), writer)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(first.Path, "precious"), []byte("data"), 0o600))
	second, err := plugin.SetUp(t.Context(), reader)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(second.Path, "precious"))
	require.ErrorIs(t, os.WriteFile(filepath.Join(second.Path, "f"), nil, 0o600), unix.EROFS)
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(second.Path, &fs))
	require.NotZero(t, fs.Flags&unix.ST_NOEXEC, "read-only in addition to the volume's mount options")
	require.NoError(t, os.WriteFile(filepath.Join(first.Path, "f"), nil, 0o600), "the first one may still write")
	for _, one := range []volume.Request{writer, reader} {
		require.NoError(t, plugin.TearDown(t.Context(), one.Dir))
	}
	wrong := request("c")
	wrong.Spec.PV.Spec.Local.FSType = ptr.To("xfs")
	_, err = plugin.SetUp(t.Context(), wrong)
	require.ErrorContains(t, err, "pv-1", "a disk with ext4 is no xfs")
	require.NoDirExists(t, wrong.Dir)
	_, err = plugin.SetUp(t.Context(), writer)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(writer.Dir, "precious"), "what was refused was not formatted")
	require.NoError(t, plugin.TearDown(t.Context(), writer.Dir))
}
