package up

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

// TestKilledClusterLetsItsDisksGo is about a cluster that was killed while a Pod had one of its disks as a block device.
func TestKilledClusterLetsItsDisksGo(t *testing.T) {
	root := testsuite.Root(t)
	l := Layout{Config: Config{DataDir: root}, RunDir: filepath.Join(root, "run")}
	loops := loopdev.New()
	path := filepath.Join(l.disksDir(), "volumes", "v", "disk.img")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	image, err := os.Create(path)
	require.NoError(t, err)
	defer image.Close()
	device, err := loops.Attach(image, loopdev.Options{})
	if err != nil {
		t.Skip("needs loop devices: ", err)
	}
	published := filepath.Join(l.KubeletDir(), "plugins/kubernetes.io/csi/volumeDevices/publish/pv/uid")
	require.NoError(t, os.MkdirAll(filepath.Dir(published), 0o750))
	require.NoError(t, os.WriteFile(published, nil, 0o600))
	require.NoError(t, mounts.Syscalls{}.Mount(loops.Path(device.Number), published, "", []string{"bind"}))
	at := filepath.Join(l.KubeletDir(), "plugins/kubernetes.io/csi/volumeDevices/pv/dev/uid")
	require.NoError(t, blockpin.New(blockpin.Deps{}).Pin(t.Context(), published, at))

	require.NoError(t, l.releaseMounts(t.Context()))
	left, err := mounts.ListBelow(root)
	require.NoError(t, err)
	require.Empty(t, left)
	attached, err := loops.List(func(backing string) bool { return strings.HasPrefix(backing, root) })
	require.NoError(t, err)
	attached = slices.DeleteFunc(attached, func(d loopdev.Device) bool { return d.Detaching }) // another process has it open right now
	require.Empty(t, attached, "the disk is detached")
}

// linkedCluster is a dead cluster behind a symbolic link, with a real mount where its kubelet makes them.
func linkedCluster(t *testing.T) (l Layout, real, at string) {
	t.Helper()
	root := testsuite.Root(t)
	real, link, source := filepath.Join(root, "real"), filepath.Join(root, "link"), filepath.Join(root, "source")
	require.NoError(t, os.Symlink("real", link))
	require.NoError(t, errors.Join(os.Mkdir(real, 0o700), os.Mkdir(source, 0o700)))
	require.NoError(t, os.WriteFile(filepath.Join(source, "kept"), nil, 0o600))
	l = layoutFor(t, Config{DataDir: link, NodeName: "n"})
	require.NoError(t, l.saveState())
	at = filepath.Join(real, "kubelet", "pods", "uid", "volumes", "v")
	require.NoError(t, os.MkdirAll(at, 0o750))
	require.NoError(t, mounts.Syscalls{}.Mount(source, at, "", []string{"bind"}))
	t.Cleanup(func() {
		require.FileExists(t, filepath.Join(source, "kept"), "what is mounted is not ours to delete")
	})
	return l, real, at
}

func TestResetOfAClusterBehindALink(t *testing.T) {
	l, real, _ := linkedCluster(t)
	require.NoError(t, l.Reset(t.Context()))
	left, err := mounts.ListBelow(filepath.Dir(real))
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoDirExists(t, real)
	require.Equal(t, real, layoutFor(t, Config{DataDir: filepath.Join(filepath.Dir(real), "link"), NodeName: "n"}).DataDir,
		"the next cluster lies there again")
}

func TestDoctorFixesAClusterBehindALink(t *testing.T) {
	l, real, at := linkedCluster(t)
	ours := func() *Leftover {
		dead, err := FindLeftovers(t.Context())
		require.NoError(t, err)
		if i := slices.IndexFunc(dead, func(r *Leftover) bool { return r.ID == l.ID }); i >= 0 {
			return dead[i]
		}
		return nil
	}
	lock, err := l.lock(t.Context())
	require.NoError(t, err)
	require.Nil(t, ours(), "it runs")
	require.NoError(t, lock.Close())

	found := ours()
	require.NotNil(t, found)
	require.Equal(t, real, found.DataDir)
	require.Equal(t, []string{at}, found.Mounts)
	require.NoError(t, found.Remove(t.Context()))
	left, err := mounts.ListBelow(real)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Nil(t, ours())
	require.True(t, l.isInitialized(), "its data stay")
}
