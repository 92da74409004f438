package up

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func testLayout(t *testing.T) Layout {
	t.Helper()
	return layoutFor(t, Config{DataDir: t.TempDir(), NodeName: "node", APIPort: 7001})
}

func TestStateIsRemembered(t *testing.T) {
	l := testLayout(t)
	require.NoError(t, l.remember())
	recalled, err := Recall(Config{DataDir: l.DataDir, PodCIDR: DefaultPodCIDR, APIPort: 7002}, func(flag string) bool { return flag == "api-port" })
	require.NoError(t, err)
	require.Equal(t, "node", recalled.NodeName)
	require.Equal(t, 7002, recalled.APIPort, "a flag that was given wins")

	require.NoError(t, l.remember(), "the same flags again")
	changed := l
	changed.ServiceCIDR = "10.99.0.0/16"
	require.ErrorContains(t, changed.remember(), "--service-cidr")
}

func TestStateRefusesWhatIsNotIts(t *testing.T) {
	for name, test := range map[string]struct{ file, content, wants string }{
		"truncated":      {"cluster.json", `{"format": 1, "no`, "damaged"},
		"a field lacks":  {"cluster.json", `{"format": 1}`, "lacks a field"},
		"newer":          {"cluster.json", `{"format": 2}`, "newer berth"},
		"somebody else":  {"notes.txt", "x", "notes.txt"},
		"empty is error": {"cluster.json", "", "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLayout(t)
			require.NoError(t, os.WriteFile(filepath.Join(l.DataDir, test.file), []byte(test.content), 0o600))
			require.ErrorContains(t, l.remember(), test.wants)
			kept, err := os.ReadFile(filepath.Join(l.DataDir, test.file))
			require.NoError(t, err)
			require.Equal(t, test.content, string(kept), "nothing is lost")
		})
	}
}

func TestACrashDuringTheFirstStartIsNoObstacle(t *testing.T) {
	l := testLayout(t)
	require.NoError(t, os.WriteFile(filepath.Join(l.DataDir, ".cluster.json.123"), []byte("{"), 0o600))
	lock, err := l.lock()
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, l.remember())
}

func TestOnlyOneHoldsTheLock(t *testing.T) {
	l := testLayout(t)
	first, err := l.lock()
	require.NoError(t, err)
	_, err = l.lock()
	require.ErrorContains(t, err, "already running")
	require.ErrorContains(t, err, "process ")
	require.NoError(t, first.Close())
	second, err := l.lock()
	require.NoError(t, err)
	require.NoError(t, second.Close())
}
