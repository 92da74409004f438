package userns_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/userns"
)

func podsDir(t *testing.T, uids ...string) string {
	dir := t.TempDir()
	for _, uid := range uids {
		require.NoError(t, os.Mkdir(filepath.Join(dir, uid), 0o750))
	}
	return dir
}

func hostID(t *testing.T, m *userns.Manager, uid types.UID) uint32 {
	ns, err := m.Ensure(uid)
	require.NoError(t, err)
	require.Equal(t, ns.Uids, ns.Gids)
	require.Equal(t, uint32(65536), ns.Uids[0].Length)
	return ns.Uids[0].HostId
}

func TestEachPodHasItsOwnBlock(t *testing.T) {
	dir := podsDir(t, "a", "b", "c")
	m := userns.New(dir, 0, slog.New(slog.DiscardHandler))
	require.Equal(t, uint32(65536), hostID(t, m, "a"))
	require.Equal(t, uint32(131072), hostID(t, m, "b"))
	require.Equal(t, uint32(65536), hostID(t, m, "a"), "always the same")

	m = userns.New(dir, 0, slog.New(slog.DiscardHandler)) // after a crash
	require.Equal(t, uint32(196608), hostID(t, m, "c"), "earlier blocks are in use")
	require.Equal(t, uint32(131072), hostID(t, m, "b"))
	require.NoError(t, m.Release("a"))
	require.NoError(t, m.Release("a"))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o750))
	require.Equal(t, uint32(65536), hostID(t, m, "d"), "a released block is allocated again")
}

func TestDamagedRecordHarmsNoPod(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"half":  func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"empty": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"the node's own ids": func(path string) error {
			return os.WriteFile(path, []byte(`{"uidMappings":[{"hostId":0,"containerId":0,"length":65536}],`+
				`"gidMappings":[{"hostId":0,"containerId":0,"length":65536}]}`), 0o600)
		},
		"directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) },
		"link":      func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := podsDir(t, "a", "b")
			require.NoError(t, damage(filepath.Join(dir, "a", "userns")))
			m := userns.New(dir, 0, slog.New(slog.DiscardHandler))
			b := hostID(t, m, "b")
			require.NotEqual(t, b, hostID(t, m, "a"), "a Pod without processes gets a new block")
			require.FileExists(t, filepath.Join(dir, "a", "userns"))
			_, err := os.Lstat(filepath.Join(dir, "a", "userns.damaged"))
			require.NoError(t, err, "the damaged record is kept")
			require.Equal(t, b, hostID(t, userns.New(dir, 0, slog.New(slog.DiscardHandler)), "b"), "the next process agrees")
		})
	}
	m := userns.New(podsDir(t), 0, slog.New(slog.DiscardHandler))
	_, err := m.Ensure("without a directory")
	require.Error(t, err)
}

// TestLostRecordIsRebuiltFromProcesses has a process in a user namespace, in a cgroup with the Pod's UID in its name.
func TestLostRecordIsRebuiltFromProcesses(t *testing.T) {
	const uid, block = "0b5c7f1e-7b1e-4d1c-9a55-1d0b8f4f1a11", 5
	proc := t.TempDir()
	for pid, files := range map[string][2]string{
		"10": {"0 0 4294967295", "0::/kubepods/pod" + uid + "/x"}, // a process of the Pod outside of its namespace
		"11": {"0 327680 65536", "0::/kubepods.slice/pod0b5c7f1e_7b1e_4d1c_9a55_1d0b8f4f1a11.slice/y"},
		"12": {"0 65536 65536", "0::/podman"},
	} {
		require.NoError(t, os.Mkdir(filepath.Join(proc, pid), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(proc, pid, "uid_map"), []byte("         "+files[0]+"\n"), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(proc, pid, "cgroup"), []byte(files[1]+"\n"), 0o600))
	}
	dir := podsDir(t, uid, "b")
	require.NoError(t, os.WriteFile(filepath.Join(dir, uid, "userns"), nil, 0o600))
	m := userns.NewWithProc(dir, proc)
	require.Equal(t, uint32(block*65536), hostID(t, m, uid), "its processes have these ids")
	require.Equal(t, uint32(131072), hostID(t, m, "b"), "another program has the first block")
	require.Equal(t, uint32(block*65536), hostID(t, userns.New(dir, 0, slog.New(slog.DiscardHandler)), uid), "it is recorded again")
}
