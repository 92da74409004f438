package isolate

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestArgumentsArriveUnchanged(t *testing.T) {
	config := Config{
		Link: "berth01234567", IPv6: true, Avoid: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Resolvers: []netip.Addr{netip.MustParseAddr("127.0.0.53")},
		DataDir: "/data", RunDir: "/run/berth/01234567", Cgroup: "/berth-01234567", NewDataDir: true, Lock: 7, Listener: 8, Page: 10, StartedAt: 9,
		Init: true, Control: 5, Argv: []string{"/bin/berth", "up", "--isolated", "--", "--link"},
	}
	parsed, err := Parse(config.Args())
	require.NoError(t, err)
	require.Equal(t, config, parsed)

	_, err = Parse([]string{"--data-dir", "/data"})
	require.ErrorContains(t, err, "missing: --link, --run-dir, --cgroup, --lock-fd, --listener-fd, the program to run")
}

func TestCandidatesAreApart(t *testing.T) {
	pool := netip.MustParsePrefix("198.18.0.0/15")
	require.Equal(t, "198.18.0.0/30", candidate(pool, 0).String())
	require.Equal(t, "198.18.1.4/30", candidate(pool, 65).String())
	last := candidate(pool, 1<<15-1)
	require.Equal(t, "198.19.255.252/30", last.String())
	require.True(t, pool.Contains(last.Addr()))
}

func TestTwoClustersGetDifferentAddresses(t *testing.T) {
	config := Config{Link: "berth-test-link"}
	first, err := config.claimLink()
	require.NoError(t, err)
	defer first.close(t.Context())
	second, err := config.claimLink()
	require.NoError(t, err)
	require.NotEqual(t, first.inside, second.inside)
	require.Equal(t, first.outside.V4.Next(), first.inside.V4)
	again := second.inside
	second.close(t.Context())

	third, err := config.claimLink()
	require.NoError(t, err)
	require.Equal(t, again, third.inside, "a cluster keeps its addresses where it can")
	third.close(t.Context())

	config.Avoid = []netip.Prefix{pools[0]}
	other, err := config.claimLink()
	require.NoError(t, err)
	defer other.close(t.Context())
	require.True(t, pools[1].Contains(other.inside.V4))

	config.Avoid = pools
	_, err = config.claimLink()
	require.ErrorContains(t, err, "no addresses for the cluster's link")
}

func TestMountsDirectlyBelow(t *testing.T) {
	mounts := []*mountinfo.Info{
		{ID: 1, Parent: 0, Mountpoint: "/sys"}, {ID: 2, Parent: 1, Mountpoint: "/sys/hidden"}, {ID: 3, Parent: 1, Mountpoint: "/sys"},
		{ID: 4, Parent: 3, Mountpoint: "/sys/fs/cgroup"}, {ID: 5, Parent: 4, Mountpoint: "/sys/fs/cgroup/memory"},
	}
	require.Equal(t, []string{"/sys/fs/cgroup"}, directlyBelow(mounts, "/sys"))
	require.Empty(t, directlyBelow(mounts, "/proc"))
}

func TestExitCodes(t *testing.T) {
	require.Equal(t, 3, exitCode(unix.WaitStatus(3<<8)))
	require.Equal(t, 137, exitCode(unix.WaitStatus(unix.SIGKILL)))
}

func TestADataDirectoryWithoutAClusterIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, RemoveUninitialized(dir), "it does not exist")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, LockName), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cluster.json"), nil, 0o600))
	require.NoError(t, RemoveUninitialized(dir))
	require.DirExists(t, dir, "it has a cluster")
	require.NoError(t, os.Remove(filepath.Join(dir, "cluster.json")))
	require.NoError(t, RemoveUninitialized(dir))
	require.NoDirExists(t, dir)
}

func TestTheIsolationIsReadOnce(t *testing.T) {
	inside, err := FromEnvironment()
	require.NoError(t, err)
	require.Nil(t, inside)
	address := netip.MustParseAddr("198.18.0.2")
	env, err := Config{RunDir: "/run/berth/x"}.environment(addresses{address, address6(address)})
	require.NoError(t, err)
	require.Contains(t, env, "XTABLES_LOCKFILE=/run/berth/x/xtables.lock")
	text, ok := strings.CutPrefix(env[len(env)-2], variable+"=")
	require.True(t, ok)
	require.Contains(t, text, `"address":"198.18.0.2","address6":"fd62:6572:7468::c612:2"`)
	t.Setenv(variable, "not JSON")
	_, err = FromEnvironment()
	require.ErrorContains(t, err, variable)
}
