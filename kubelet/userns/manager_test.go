package userns_test

import (
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
	m := userns.New(dir, 0)
	require.Equal(t, uint32(65536), hostID(t, m, "a"))
	require.Equal(t, uint32(131072), hostID(t, m, "b"))
	require.Equal(t, uint32(65536), hostID(t, m, "a"), "always the same")

	m = userns.New(dir, 0) // after a crash
	require.Equal(t, uint32(196608), hostID(t, m, "c"), "earlier blocks are in use")
	require.Equal(t, uint32(131072), hostID(t, m, "b"))
	require.NoError(t, m.Release("a"))
	require.NoError(t, m.Release("a"))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o750))
	require.Equal(t, uint32(65536), hostID(t, m, "d"), "a released block is allocated again")
}

func TestInvalidRecordFailsEnsure(t *testing.T) {
	for name, content := range map[string]string{
		"broken": "{", "empty": "{}", "the node's own": `{"uidMappings":[{"hostId":0,"containerId":0,"length":65536}],` +
			`"gidMappings":[{"hostId":0,"containerId":0,"length":65536}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := podsDir(t, "a", "b")
			require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "userns"), []byte(content), 0o600))
			_, err := userns.New(dir, 0).Ensure("b")
			require.ErrorContains(t, err, "Pod a")
		})
	}
	m := userns.New(podsDir(t), 0)
	_, err := m.Ensure("without a directory")
	require.Error(t, err)
}
