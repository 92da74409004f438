package up

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// machine is a root directory with what two clusters show of themselves.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"run/berth/0123abcd", "run/berth/run-1", "sys/fs/cgroup/memory/berth-0123abcd/kubepods",
		"sys/class/net/berth0123abcd", "proc/100/fd", "proc/101/fd", "proc/102/fd", "run/berth/" + clusterID("/data")} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	shim := "/bin/containerd-shim-runc-v2\x00-address\x00/run/berth/0123abcd/containerd.sock\x00"
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/100/cmdline"), []byte(shim), 0o600))
	require.NoError(t, os.Symlink("/data/lock", filepath.Join(root, "proc/101/fd/7")))
	return root
}

func TestLeftoversAreOfDeadClustersOnly(t *testing.T) {
	dead := hostState{root: machine(t)}.leftovers()
	require.Len(t, dead, 1, "the other holds its lock")
	require.Equal(t, "0123abcd", dead[0].ID)
	require.Equal(t, []int{100}, dead[0].Shims)
	require.Len(t, dead[0].Cgroups, 1)
	require.True(t, dead[0].Bridge)
}

func TestAClusterWithAProcessLives(t *testing.T) {
	root := machine(t)
	command := "/bin/containerd\x00--config\x00/run/berth/0123abcd/config.toml\x00"
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/102/cmdline"), []byte(command), 0o600))
	require.Empty(t, hostState{root: root}.leftovers())
}

func TestATableOfTheFirewallIsALeftover(t *testing.T) {
	s := hostState{root: machine(t), accepted: []string{"berthfeedbeef", "berth-other"}, tables: []string{"filter", "kube-proxy", "berthold", "berthfeedbeef", "berthfeedbeef"}}
	dead := s.leftovers()
	require.Len(t, dead, 2)
	require.Equal(t, &Leftover{ID: "feedbeef", Accepts: true, Tables: 2}, dead[1])
	require.Zero(t, dead[0].Tables)
	s.tables, s.accepted = []string{"berth" + clusterID("/data")}, nil
	require.Len(t, s.leftovers(), 1, "its cluster runs")
}

// TestLeftoversInADataDirectory is about leftovers outside of the directories that are named by the cluster's ID.
func TestLeftoversInADataDirectory(t *testing.T) {
	dir := t.TempDir()
	mounts := []string{dir + "/kubelet/pods/uid/volumes/v", dir + "/containerd/snapshots/1",
		dir + "/volumes/theirs", dir + "/kubelets/x", "/srv/kubelet/pods/x"}
	s := hostState{root: t.TempDir(), mounts: mounts, disks: []string{dir + "/disks/volumes/v/disk.img", "/srv/disks/other.img"}}
	require.Empty(t, s.leftovers(), "nothing identifies the directory as a cluster's")

	owned := func() {
		dead := s.leftovers()
		require.Len(t, dead, 1)
		require.Equal(t, clusterID(dir), dead[0].ID)
		require.Equal(t, dir, dead[0].DataDir)
		require.Equal(t, mounts[:2], dead[0].Mounts, "mounts elsewhere belong to others")
		require.Equal(t, s.disks[:1], dead[0].Disks)
	}
	s.rules = map[string][]netip.Prefix{"berth" + clusterID(dir): {netip.MustParsePrefix("10.1.0.0/24")}, "berthling": nil}
	owned()
	require.Equal(t, s.rules["berth"+clusterID(dir)], s.leftovers()[0].Rules)

	s.rules = nil
	require.NoError(t, Layout{Config: Config{DataDir: dir, NodeName: "n", PodCIDR: "10.1.0.0/24", ServiceCIDR: "10.2.0.0/24",
		APIPort: 1}}.saveState())
	owned()

	lock := filepath.Join(s.root, "proc/200/fd")
	require.NoError(t, os.MkdirAll(lock, 0o755))
	require.NoError(t, os.Symlink(filepath.Join(dir, lockName), filepath.Join(lock, "3")))
	require.Empty(t, s.leftovers(), "the cluster runs")
}
