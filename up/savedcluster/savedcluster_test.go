package savedcluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fixture is a store and a data directory.
type fixture struct {
	store Store
	data  string
}

func newFixture(t *testing.T) fixture {
	root := t.TempDir()
	f := fixture{store: New(filepath.Join(root, "store")), data: filepath.Join(root, "data")}
	f.write(t, "etcd/member/db", "objects")
	f.write(t, "lock", "")
	f.write(t, "log/kubelet.log", "lines")
	f.write(t, "log/pods/x/0.log", "of a Pod")
	return f
}

func (f fixture) write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(f.data, path)), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(f.data, path), []byte(text), 0o600))
}

func (f fixture) read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

func still(context.Context) (func() error, time.Duration, error) {
	return func() error { return nil }, 0, nil
}

func (f fixture) save(t *testing.T, name string) Info {
	t.Helper()
	info, err := f.store.Save(t.Context(), Info{Name: name, DataDir: f.data, Node: "node"}, still)
	require.NoError(t, err)
	return info
}

func nothing(string, Info) error { return nil }

func TestSavedClusterIsCopiedAnyNumberOfTimes(t *testing.T) {
	f := newFixture(t)
	f.save(t, "one")
	f.write(t, "etcd/member/db", "changed")
	for _, name := range []string{"first", "second"} {
		fork := filepath.Join(t.TempDir(), name)
		require.NoError(t, f.store.Copy(t.Context(), "one", fork, func(copied string, info Info) error {
			require.Equal(t, f.data, info.DataDir)
			require.NoDirExists(t, fork, "it is prepared before it is a data directory")
			return os.WriteFile(filepath.Join(copied, "prepared"), nil, 0o600)
		}))
		require.Equal(t, "objects", f.read(t, filepath.Join(fork, "etcd/member/db")))
		require.FileExists(t, filepath.Join(fork, "prepared"))
		require.FileExists(t, filepath.Join(fork, "log/pods/x/0.log"))
		require.NoFileExists(t, filepath.Join(fork, "lock"))
		require.NoFileExists(t, filepath.Join(fork, "log/kubelet.log"))
		require.NoDirExists(t, fork+partial)
		require.ErrorContains(t, f.store.Copy(t.Context(), "one", fork, nothing), "not empty")
	}
	require.Equal(t, "changed", f.read(t, filepath.Join(f.data, "etcd/member/db")), "the original stays")
}

func TestReplaceBringsTheFormerStateBack(t *testing.T) {
	f := newFixture(t)
	f.save(t, "one")
	f.write(t, "etcd/member/db", "changed")
	f.write(t, "new", "")
	require.NoError(t, f.store.Replace(t.Context(), "one", f.data, nothing))
	require.Equal(t, "objects", f.read(t, filepath.Join(f.data, "etcd/member/db")))
	require.NoFileExists(t, filepath.Join(f.data, "new"))
	require.ErrorContains(t, f.store.Replace(t.Context(), "one", f.data, func(string, Info) error { return errors.New("no disk") }), "no disk")
	require.Equal(t, "objects", f.read(t, filepath.Join(f.data, "etcd/member/db")), "a failure changes nothing")
	require.NoDirExists(t, f.data+partial)
}

func TestNamesAreListedAndDeleted(t *testing.T) {
	f := newFixture(t)
	all, err := f.store.List()
	require.NoError(t, err)
	require.Empty(t, all)
	f.save(t, "b")
	f.save(t, "a")
	all, err = f.store.List()
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, []string{"b", "a"}, []string{all[0].Name, all[1].Name}, "by age")
	_, err = f.store.Save(t.Context(), Info{Name: "a", DataDir: f.data}, still)
	require.ErrorContains(t, err, "exists")
	require.NoError(t, f.store.Delete("b"))
	require.ErrorContains(t, f.store.Delete("b"), "no saved cluster")
	for _, name := range []string{"", "../a", "a/b", ".a", "a.partial"} {
		_, err := f.store.Get(name)
		require.ErrorContains(t, err, "want up to 63", name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(f.store.dir, "a", infoName), []byte("{"), 0o600))
	_, err = f.store.List()
	require.ErrorContains(t, err, "damaged")
}

// TestInterruptedCopiesAreRemoved leaves what a killed process leaves.
func TestInterruptedCopiesAreRemoved(t *testing.T) {
	f := newFixture(t)
	left := filepath.Join(f.store.dir, "one"+partial, "saved")
	require.NoError(t, os.MkdirAll(left, 0o700))
	all, err := f.store.List()
	require.NoError(t, err)
	require.Empty(t, all)
	f.save(t, "one")
	require.NoDirExists(t, left)
	work, err := makeWorkDir(filepath.Join(f.store.dir, "two") + partial)
	require.NoError(t, err)
	_, err = f.store.Save(t.Context(), Info{Name: "two", DataDir: f.data}, still)
	require.ErrorContains(t, err, "another command works on it")
	require.NoError(t, work.remove())
}

func TestStandstillEndsWhateverHappens(t *testing.T) {
	f := newFixture(t)
	ended := 0
	hold := func(context.Context) (func() error, time.Duration, error) {
		return func() error { ended++; return nil }, time.Nanosecond, nil
	}
	_, err := f.store.Save(t.Context(), Info{Name: "slow", DataDir: f.data}, hold)
	require.ErrorContains(t, err, "stop it first")
	require.Equal(t, 1, ended)
	_, err = f.store.Save(t.Context(), Info{Name: "missing", DataDir: f.data + "-missing"}, still)
	require.ErrorIs(t, err, os.ErrNotExist)
	all, err := f.store.List()
	require.NoError(t, err)
	require.Empty(t, all)
}
