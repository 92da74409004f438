package up

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/statefile/corrupt"
	"github.com/berth-dev/berth/up/removal"
	"github.com/berth-dev/berth/up/savedcluster"
)

func testLayout(t *testing.T) Layout {
	t.Helper()
	return layoutFor(t, Config{DataDir: t.TempDir(), NodeName: "node", APIPort: 7001})
}

func TestStateIsRemembered(t *testing.T) {
	l := testLayout(t)
	require.NoError(t, l.saveState())
	recalled, err := ApplySavedState(Config{DataDir: l.DataDir, PodCIDR: DefaultPodCIDR, APIPort: 7002}, func(flag string) bool { return flag == "api-port" })
	require.NoError(t, err)
	require.Equal(t, "node", recalled.NodeName)
	require.Equal(t, 7002, recalled.APIPort, "a flag that was given wins")
	recalled, err = ApplySavedState(Config{DataDir: l.DataDir}, func(string) bool { return true })
	require.NoError(t, err)
	require.Equal(t, 7001, recalled.APIPort, "any free port may be the one that it has")

	require.NoError(t, l.saveState(), "the same flags again")
	changed := l
	changed.ServiceCIDR = "10.99.0.0/16"
	require.ErrorContains(t, changed.saveState(), "--service-cidr")
}

func TestStateRefusesWhatIsNotIts(t *testing.T) {
	for name, test := range map[string]struct{ file, content, wants string }{
		"truncated":      {"cluster.json", `{"format": 1, "no`, "damaged"},
		"a field lacks":  {"cluster.json", `{"format": 1}`, "is incomplete"},
		"newer":          {"cluster.json", `{"format": 2}`, "newer berth"},
		"other content":  {"notes.txt", "x", "notes.txt"},
		"empty is error": {"cluster.json", "", "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLayout(t)
			require.NoError(t, os.WriteFile(filepath.Join(l.DataDir, test.file), []byte(test.content), 0o600))
			require.ErrorContains(t, l.saveState(), test.wants)
			kept, err := os.ReadFile(filepath.Join(l.DataDir, test.file))
			require.NoError(t, err)
			require.Equal(t, test.content, string(kept), "nothing is lost")
		})
	}
}

// TestStateWithAFlippedBitIsRefused flips each bit of a state file in turn: none is taken for a state with other values.
func TestStateWithAFlippedBitIsRefused(t *testing.T) {
	l := testLayout(t)
	require.NoError(t, l.saveState())
	whole, err := os.ReadFile(l.statePath())
	require.NoError(t, err)
	want, err := readState(l.statePath())
	require.NoError(t, err)
	for i := range len(whole) * 8 {
		damaged := bytes.Clone(whole)
		damaged[i/8] ^= 1 << (i % 8)
		require.NoError(t, os.WriteFile(l.statePath(), damaged, 0o600))
		got, err := readState(l.statePath())
		if err == nil {
			require.Equal(t, want, got, "bit %d: %s", i, damaged)
			continue
		}
		require.ErrorContains(t, err, "--reset")
	}
}

func TestStateThatIsNoFileIsRefused(t *testing.T) {
	for _, way := range corrupt.Ways() {
		if way.Name == "no permission" {
			continue // root may read it
		}
		t.Run(way.Name, func(t *testing.T) {
			l := testLayout(t)
			require.NoError(t, l.saveState())
			require.NoError(t, way.Do(l.statePath()))
			_, err := readState(l.statePath())
			if way.Name == "missing" {
				require.ErrorIs(t, err, fs.ErrNotExist)
				return
			}
			require.ErrorContains(t, err, l.statePath())
			require.Regexp(t, "--reset|use that berth", err.Error(), "it says what to do")
		})
	}
}

// TestFilesOfOthersAreKept has a directory that was named by mistake: nothing that deletes a cluster takes it for one.
func TestFilesOfOthersAreKept(t *testing.T) {
	l := testLayout(t)
	file := filepath.Join(l.DataDir, "thesis.tex")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, l.Reset(t.Context()), "has no cluster.json")
	require.FileExists(t, file)

	replaced := false
	require.ErrorContains(t, l.WhileStopped(t.Context(), func() error { replaced = true; return nil }), "has no cluster.json")
	require.False(t, replaced)
	require.FileExists(t, file)
	entries, err := os.ReadDir(l.DataDir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing was made there")

	require.NoError(t, os.Remove(file))
	require.NoError(t, l.WhileStopped(t.Context(), func() error { replaced = true; return nil }))
	require.True(t, replaced, "an empty directory is as good as none")
}

// TestADataDirMayBeAFileSystem starts in a new file system of ext4, and deletes its content.
func TestADataDirMayBeAFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root: run the tests as root")
	}
	l := testLayout(t)
	require.NoError(t, unix.Mount("tmpfs", l.DataDir, "tmpfs", 0, "mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(l.DataDir, 0)) })
	found := filepath.Join(l.DataDir, removal.LostAndFound)
	require.NoError(t, os.Mkdir(found, 0o700))
	require.NoError(t, l.saveState())
	require.NoError(t, os.MkdirAll(filepath.Join(l.DataDir, "pki"), 0o700))
	require.NoError(t, l.Reset(t.Context()))
	entries, err := os.ReadDir(l.DataDir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.DirExists(t, found)

	require.NoError(t, os.Remove(found))
	require.NoError(t, os.WriteFile(found, nil, 0o600))
	require.ErrorContains(t, l.saveState(), `contains "lost+found"`, "a file is none of ext4's tools")
}

// TestADataDirThatIsPartlyRestored is what an interrupted restore leaves: it is none to start in, but one to restore to again or to delete.
func TestADataDirThatIsPartlyRestored(t *testing.T) {
	l := testLayout(t)
	for _, dir := range []string{"etcd", savedcluster.WorkName} {
		require.NoError(t, os.Mkdir(filepath.Join(l.DataDir, dir), 0o700))
	}
	require.ErrorContains(t, l.saveState(), "restore")
	restored := false
	require.NoError(t, l.WhileStopped(t.Context(), func() error { restored = true; return nil }))
	require.True(t, restored)
	require.NoError(t, l.Reset(t.Context()))
	require.NoDirExists(t, l.DataDir)
}

func TestACrashDuringTheFirstStartIsNoObstacle(t *testing.T) {
	l := testLayout(t)
	require.NoError(t, os.WriteFile(filepath.Join(l.DataDir, ".cluster.json.123"), []byte("{"), 0o600))
	lock, err := l.lock(t.Context())
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, l.saveState())
}

// TestKubeletRootIsTheClustersAlone has the files of Pods outside of the data directory: remembered, fixed, and deleted with the cluster.
func TestKubeletRootIsTheClustersAlone(t *testing.T) {
	l := testLayout(t)
	l.KubeletRoot = filepath.Join(t.TempDir(), "kubelet")
	require.Equal(t, l.KubeletRoot, l.KubeletDir())
	require.NoError(t, os.MkdirAll(filepath.Join(l.KubeletRoot, "pods"), 0o700))
	require.ErrorContains(t, l.saveState(), `contains "pods": it is of another kubelet or cluster`)
	require.NoError(t, os.Remove(filepath.Join(l.KubeletRoot, "pods")))
	require.NoError(t, l.saveState())
	require.NoError(t, os.Mkdir(filepath.Join(l.KubeletRoot, "pods"), 0o700))
	require.NoError(t, l.saveState(), "at the next start its own files are there")

	again, err := ApplySavedState(Config{DataDir: l.DataDir}, func(string) bool { return false })
	require.NoError(t, err)
	require.Equal(t, l.KubeletRoot, again.KubeletRoot)
	moved := l
	moved.KubeletRoot = ""
	require.ErrorContains(t, moved.saveState(), "created with --kubelet-root-dir")
	_, err = l.CheckSavable()
	require.ErrorContains(t, err, "a copy of the data directory would not have")

	require.NoError(t, moved.Reset(t.Context()))
	require.NoDirExists(t, l.KubeletRoot)
	require.NoDirExists(t, l.DataDir)
	for _, root := range []string{l.DataDir, filepath.Dir(l.DataDir), filepath.Join(l.DataDir, "files"), "/"} {
		_, err = Config{DataDir: l.DataDir, KubeletRoot: root, BinDir: l.BinDir}.Complete()
		require.ErrorContains(t, err, "one is in the other", root)
	}
}

func TestAFailedFirstStartKeepsNoFlags(t *testing.T) {
	l := testLayout(t)
	require.False(t, l.isInitialized())
	require.NoError(t, l.saveState())
	require.NoError(t, l.makeDirectories())
	t.Cleanup(func() { _ = os.RemoveAll(l.RunDir) })
	require.True(t, l.isInitialized())
	require.NoError(t, os.WriteFile(filepath.Join(l.VolumesDir(), "kept"), []byte("x"), 0o600))
	require.NoError(t, l.removeState())
	require.False(t, l.isInitialized())
	require.NoDirExists(t, l.KubeletDir())
	require.FileExists(t, filepath.Join(l.VolumesDir(), "kept"), "what is not its own")

	require.NoError(t, os.RemoveAll(l.VolumesDir()))
	changed := l
	changed.PodCIDR = "10.99.0.0/16"
	require.NoError(t, changed.saveState())
}

func TestMissingProgramsAreNamedInOneLine(t *testing.T) {
	l := testLayout(t)
	l.BinDir = t.TempDir()
	require.NoError(t, os.WriteFile(l.Program("runc"), nil, 0o600))
	err := l.checkPrograms()
	require.ErrorContains(t, err, "runc is not executable")
	require.ErrorContains(t, err, "berth-controlplane, berth-dns, containerd, ")
	require.ErrorContains(t, err, "--bin-dir")
}

func TestOnlyOneHoldsTheLock(t *testing.T) {
	l := testLayout(t)
	first, err := l.lock(t.Context())
	require.NoError(t, err)
	_, err = l.lock(t.Context())
	require.ErrorContains(t, err, "already running")
	require.ErrorContains(t, err, "process ")
	require.NoError(t, first.Close())
	second, err := l.lock(t.Context())
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

// TestALockOfAKilledClusterIsAwaited lets a process inherit the lock of one that ends, as the first process of an isolated
// cluster does.
func TestALockOfAKilledClusterIsAwaited(t *testing.T) {
	l := testLayout(t)
	path := filepath.Join(l.DataDir, lockName)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	// The shell opens the file and is replaced by flock, which locks it and ends; sleep inherits it.
	cmd := exec.Command("/bin/sh", "-c", `exec 9<"$0"; sleep 1 & exec flock --exclusive 9`, path)
	require.NoError(t, cmd.Run())
	held := (*filelock.HeldError)(nil)
	_, err := filelock.Acquire(path)
	require.ErrorAs(t, err, &held, "it is still held")
	lock, err := l.lock(t.Context())
	require.NoError(t, err)
	require.NoError(t, lock.Close())
}

func TestIsolationIsKept(t *testing.T) {
	l := testLayout(t)
	l.Isolated = true
	require.NoError(t, l.saveState())
	none := func(string) bool { return false }
	config, err := ApplySavedState(Config{DataDir: l.DataDir}, none)
	require.NoError(t, err)
	require.True(t, config.Isolated)
	config, err = ApplySavedState(Config{DataDir: l.DataDir}, func(flag string) bool { return flag == "isolated" })
	require.NoError(t, err)
	require.False(t, config.Isolated, "--isolated=false was given")
	l.Isolated = false
	require.NoError(t, l.saveState(), "it may change")
}

func TestANewClusterNeedsDiskSpace(t *testing.T) {
	l := testLayout(t)
	inNew := l
	inNew.DataDir = filepath.Join(l.DataDir, "not", "there", "yet")
	require.NoError(t, inNew.checkDiskSpace(1))
	require.ErrorContains(t, inNew.checkDiskSpace(1<<62), "MiB free, and a new cluster needs")
	require.NoError(t, l.saveState())
	require.NoError(t, l.checkDiskSpace(1<<62), "it has what it needs")
}
