package subpath_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/subpath"
)

// fixture is a Pod's directory, a volume, and a file that is not the volume's.
type fixture struct {
	*subpath.SubPaths
	podDir, volume, secret string
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root: run the tests as root")
	}
	dir := t.TempDir()
	p := fixture{subpath.New(mounts.Syscalls{}), filepath.Join(dir, "pod"), filepath.Join(dir, "volume"), filepath.Join(dir, "secret")}
	require.NoError(t, os.MkdirAll(p.volume, 0o755))
	require.NoError(t, os.MkdirAll(p.secret, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(p.secret, "file"), []byte("secret"), 0o600))
	t.Cleanup(func() {
		require.NoError(t, p.Cleanup(context.WithoutCancel(t.Context()), p.podDir))
		left, err := mounts.ListBelow(dir)
		require.NoError(t, err)
		require.Empty(t, left)
		require.NoDirExists(t, filepath.Join(p.podDir, "volume-subpaths"))
		require.FileExists(t, filepath.Join(p.secret, "file"))
	})
	return p
}

func (p fixture) request(path string) subpath.Request {
	return subpath.Request{PodDir: p.podDir, VolumeName: "data", VolumePath: p.volume, SubPath: path, Container: "main"}
}

func TestPrepare(t *testing.T) {
	p := newFixture(t)
	require.NoError(t, os.Chown(p.volume, 0, 4321))
	require.NoError(t, os.Chmod(p.volume, 0o770|os.ModeSetgid))
	got, err := p.Prepare(t.Context(), p.request("a/b/c"))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(p.podDir, "volume-subpaths/data/main/0"), got)
	require.NoError(t, os.WriteFile(filepath.Join(got, "f"), []byte("x"), 0o644))
	require.FileExists(t, filepath.Join(p.volume, "a/b/c/f"))
	for _, made := range []string{"a", "a/b", "a/b/c"} {
		info, err := os.Stat(filepath.Join(p.volume, made))
		require.NoError(t, err)
		require.Equal(t, 0o770|os.ModeSetgid|os.ModeDir, info.Mode(), "a new directory has the mode of the volume's root")
		require.EqualValues(t, 4321, info.Sys().(*syscall.Stat_t).Gid)
	}
	again, err := p.Prepare(t.Context(), p.request("a/b/c"))
	require.NoError(t, err)
	require.Equal(t, got, again)
	left, err := mounts.ListBelow(got)
	require.NoError(t, err)
	require.Len(t, left, 1, "the second time must not mount again")
	// A container that starts anew with another value of its variable gets another part; a file this time.
	_, err = p.Prepare(t.Context(), p.request("a/b/c/f"))
	require.NoError(t, err)
	data, err := os.ReadFile(got)
	require.NoError(t, err)
	require.Equal(t, "x", string(data))
	_, err = p.Prepare(t.Context(), p.request("a"))
	require.NoError(t, err)
	require.DirExists(t, filepath.Join(got, "b"))
}

func TestLinksInsideTheVolumeWork(t *testing.T) {
	p := newFixture(t)
	require.NoError(t, os.MkdirAll(filepath.Join(p.volume, "real/deep"), 0o755))
	require.NoError(t, os.Symlink("real", filepath.Join(p.volume, "link")))
	got, err := p.Prepare(t.Context(), p.request("link/deep"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(got, "f"), nil, 0o644))
	require.FileExists(t, filepath.Join(p.volume, "real/deep/f"))
	_, err = p.Prepare(t.Context(), p.request("link/new/er"))
	require.NoError(t, err)
	require.DirExists(t, filepath.Join(p.volume, "real/new/er"))
}

func TestNothingLeadsOutOfTheVolume(t *testing.T) {
	p := newFixture(t)
	for name, target := range map[string]string{
		"absolute": p.secret, "relative": "../secret", "file": "../secret/file", "new": "../secret/new",
		"proc": "/proc/self/root", "chain": "relative", "up": "..",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(p.volume, name)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(p.volume, "plain"), nil, 0o644))
	for _, path := range []string{"..", "../secret", "a/../../secret", p.secret, "absolute", "relative", "file", "new",
		"proc", "chain", "up", "up/secret", "absolute/made", "relative/made", "new/made", "plain/made"} {
		_, err := p.Prepare(t.Context(), p.request(path))
		require.Error(t, err, path)
		require.NotContains(t, err.Error(), p.podDir, "the error must not show paths of the node")
		require.NotContains(t, err.Error(), p.volume)
		require.Contains(t, err.Error(), "subPath")
	}
	for _, made := range []string{"made", "new"} {
		_, err := os.Lstat(filepath.Join(p.secret, made))
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	request := p.request("missing")
	request.ReadOnly = true
	_, err := p.Prepare(t.Context(), request)
	require.ErrorContains(t, err, "read-only")
	request = p.request("x")
	request.Container = "../../.."
	_, err = p.Prepare(t.Context(), request)
	require.ErrorContains(t, err, "invalid name")
}

// attackEnv names the volume to the attacker, which is this program once more.
const attackEnv = "SUBPATH_TEST_ATTACK"

// TestAttacker is the attacker's process: it swaps a directory with a link to the outside, as fast as the kernel can,
// until it is killed.
func TestAttacker(t *testing.T) {
	target := os.Getenv(attackEnv)
	if target == "" {
		t.Skip("this is what TestSwappingAttackerGetsNothing starts")
	}
	for {
		_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(target, "d"), unix.AT_FDCWD, filepath.Join(target, "evil"),
			unix.RENAME_EXCHANGE)
	}
}

// attack starts the attacker, and returns how to end it.
func attack(t *testing.T, target string) (end func()) {
	t.Helper()
	attacker := exec.Command(os.Args[0], "-test.run=^TestAttacker$")
	attacker.Env = append(os.Environ(), attackEnv+"="+target)
	require.NoError(t, attacker.Start())
	end = sync.OnceFunc(func() {
		_ = attacker.Process.Kill() // it may have ended: Wait returns the error
		var exit *exec.ExitError
		require.ErrorAs(t, attacker.Wait(), &exit)
		require.False(t, exit.Exited(), "the attacker must have gone on to the end")
	})
	t.Cleanup(end)
	return end
}

func TestSwappingAttackerGetsNothing(t *testing.T) {
	p := newFixture(t)
	require.NoError(t, os.MkdirAll(filepath.Join(p.volume, "d"), 0o755))
	require.NoError(t, os.Symlink("../secret", filepath.Join(p.volume, "evil")))
	end := attack(t, p.volume)
	inside, refused := 0, 0
	for i := 0; i < 3000 || (inside == 0 || refused == 0) && i < 100000; i++ {
		got, err := p.Prepare(t.Context(), p.request("d"))
		if err != nil {
			refused++
			continue
		}
		inside++
		_, err = os.Lstat(filepath.Join(got, "file"))
		require.ErrorIs(t, err, os.ErrNotExist, "the container would see what is outside of the volume")
	}
	end()
	require.Positive(t, inside, "the part must have been found now and then")
	require.Positive(t, refused, "the link must have been met now and then, or there was no attack")
}
