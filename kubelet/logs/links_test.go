package logs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/container"
)

func TestLinks(t *testing.T) {
	base := t.TempDir()
	dir, logRoot := filepath.Join(base, "containers"), filepath.Join(base, "pods")
	path := func(name string) string { return filepath.Join(dir, name) }
	a := Link{Pod: "web", Namespace: "ns", Container: "app", ID: "1a", Target: filepath.Join(logRoot, "ns_web_u/app/0.log")}
	l := NewLinks(dir, logRoot, container.RealOS{})
	require.NoError(t, l.Add(a))
	require.NoError(t, l.Add(a), "again")
	target, err := os.Readlink(path("web_ns_app-1a.log"))
	require.NoError(t, err)
	require.Equal(t, a.Target, target)

	long := a
	long.Pod, long.Container, long.ID = strings.Repeat("p", 253), strings.Repeat("c", 63), strings.Repeat("d", 64)
	require.NoError(t, l.Add(long), "no name is too long")
	require.NoError(t, l.Remove(long.ID))
	require.NoError(t, l.Remove(long.ID), "again")

	// The next process removes stale links and creates missing ones; foreign links stay.
	require.NoError(t, os.Symlink("/elsewhere", path("foreign.log")))
	require.NoError(t, os.WriteFile(path("file.log"), nil, 0o600))
	b := a
	b.ID = "2b"
	next := NewLinks(dir, logRoot, container.RealOS{})
	fresh := a
	fresh.ID = "3c" // created after the runtime was listed
	require.NoError(t, next.Add(fresh))
	require.NoError(t, next.Reconcile([]Link{b}))
	require.NoFileExists(t, path("web_ns_app-1a.log"))
	var names []string
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	require.Equal(t, []string{"file.log", "foreign.log", "web_ns_app-2b.log", "web_ns_app-3c.log"}, names)
	require.NoError(t, next.Remove("2b"), "one that was found")
	_, err = os.Lstat(path("web_ns_app-2b.log"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
