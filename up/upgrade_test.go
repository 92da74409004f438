package up

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/systemdunit"
	"github.com/berth-dev/berth/version"
)

// saveTestState writes the state of a cluster that ran last with these versions and returns its directory.
func saveTestState(t *testing.T, format int, last Versions) string {
	t.Helper()
	dir := t.TempDir()
	data, err := json.Marshal(state{
		Format: format, NodeName: "n", PodCIDR: DefaultPodCIDR, ServiceCIDR: DefaultServiceCIDR, APIPort: DefaultAPIPort,
		Berth: last.Berth, Kubernetes: last.Kubernetes,
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, stateName), data, 0o600))
	return dir
}

func TestVersionsThatFollowEachOther(t *testing.T) {
	layout := Layout{Config: Config{DataDir: "/d"}}
	this := Versions{"0.2.1", "v1.36.3"}
	for _, last := range []Versions{
		{}, this, {"0.2.0", "v1.36.9"}, {"0.2.7", "v1.36.0"}, {"0.1.0-dev.abc", "v1.35.1"}, {"odd", "odd"}, {"0.2.1-3-gabc", "v1.36.3"},
	} {
		require.NoError(t, layout.checkVersions(last, this), "%v", last)
	}
	const downgrade = "the cluster in /d was last run by berth 0.3.0 with Kubernetes v1.37.0, and this is berth 0.2.1 with Kubernetes v1.36.3: " +
		"a downgrade is not possible; install that berth again or a newer one, or start over with --reset"
	require.ErrorContains(t, layout.checkVersions(Versions{"0.3.0", "v1.37.0"}, this), downgrade)
	require.ErrorContains(t, layout.checkVersions(Versions{"0.3.0", "v1.36.3"}, this), "a downgrade is not possible")
	require.ErrorContains(t, layout.checkVersions(Versions{"1.0.0", "v1.36.3"}, this), "a downgrade is not possible")
	require.ErrorContains(t, layout.checkVersions(Versions{"0.1.0", "v1.34.0"}, this), "one minor version at a time")
}

func TestUpgradeIsChecked(t *testing.T) {
	_, err := CheckUpgrade(t.TempDir())
	require.ErrorContains(t, err, "no cluster found in")

	upgrade, err := CheckUpgrade(saveTestState(t, stateFormat, Versions{}))
	require.NoError(t, err)
	require.NoError(t, upgrade.Refused)
	require.False(t, upgrade.Running)
	require.Equal(t, "a berth that did not record its version", upgrade.Last.String())

	upgrade, err = CheckUpgrade(saveTestState(t, stateFormat, Versions{"99.0.0", "v1.99.0"}))
	require.NoError(t, err)
	require.ErrorContains(t, upgrade.Refused, "a downgrade is not possible")

	upgrade, err = CheckUpgrade(saveTestState(t, stateFormat+1, Versions{}))
	require.NoError(t, err)
	require.ErrorContains(t, upgrade.Refused, "was written by a newer berth")
}

// TestDowngradeChangesNothing: a start that is refused leaves the record of who ran the cluster last.
func TestDowngradeChangesNothing(t *testing.T) {
	dir := saveTestState(t, stateFormat, Versions{"99.0.0", "v1.99.0"})
	before, err := os.ReadFile(filepath.Join(dir, stateName))
	require.NoError(t, err)
	layout := Layout{Config: Config{DataDir: dir, NodeName: "n", PodCIDR: DefaultPodCIDR, ServiceCIDR: DefaultServiceCIDR, APIPort: 1}}
	require.ErrorContains(t, layout.saveState(), "a downgrade is not possible")
	after, err := os.ReadFile(filepath.Join(dir, stateName))
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))

	dir = saveTestState(t, stateFormat, Versions{"0.0.1", version.Kubernetes})
	layout.DataDir = dir
	require.NoError(t, layout.saveState())
	saved, err := readState(filepath.Join(dir, stateName))
	require.NoError(t, err)
	require.Equal(t, ownVersions(), saved.versions())
}

// TestAnIsolatedClusterThatWasKilledDoesNotRun has the pid file that a killed cluster leaves, whose ID means nothing here.
func TestAnIsolatedClusterThatWasKilledDoesNotRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := saveTestState(t, stateFormat, ownVersions())
	run := runDir(clusterID(dir))
	require.NoError(t, os.MkdirAll(run, 0o700))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(run)) })
	require.NoError(t, os.WriteFile(filepath.Join(run, nodeProcess+insidePIDSuffix), []byte("1"), 0o600))
	upgrade, err := CheckUpgrade(dir)
	require.NoError(t, err)
	require.False(t, upgrade.Running)

	lock, err := filelock.Acquire(filepath.Join(dir, lockName))
	require.NoError(t, err)
	defer lock.Close()
	upgrade, err = CheckUpgrade(dir)
	require.NoError(t, err)
	require.True(t, upgrade.Running)
	require.Equal(t, systemdunit.Of("/proc/self/cgroup"), upgrade.Unit)
}
