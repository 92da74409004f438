package up

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume/hold"
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
	number, err := loops.Attach(image, loopdev.Options{})
	if err != nil {
		t.Skip("needs loop devices: ", err)
	}
	published := filepath.Join(l.KubeletDir(), "plugins/kubernetes.io/csi/volumeDevices/publish/pv/uid")
	require.NoError(t, os.MkdirAll(filepath.Dir(published), 0o750))
	require.NoError(t, os.WriteFile(published, nil, 0o600))
	require.NoError(t, mounts.Syscalls{}.Mount(loops.Path(number), published, "", []string{"bind"}))
	at := filepath.Join(l.KubeletDir(), "plugins/kubernetes.io/csi/volumeDevices/pv/dev/uid")
	require.NoError(t, hold.New(hold.Deps{}).Hold(t.Context(), published, at))

	require.NoError(t, l.letGo(t.Context()))
	left, err := mounts.Under(root)
	require.NoError(t, err)
	require.Empty(t, left)
	attached, err := loops.List(func(backing string) bool { return strings.HasPrefix(backing, root) })
	require.NoError(t, err)
	require.Empty(t, attached)
	_, err = os.Stat(filepath.Join("/sys/block", filepath.Base(loops.Path(number)), "loop"))
	require.ErrorIs(t, err, os.ErrNotExist, "nobody holds the disk any more")
}
