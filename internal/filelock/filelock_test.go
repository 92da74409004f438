package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOneProcessAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Acquire(path)
	require.NoError(t, err)
	info, err := first.Stat()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	_, err = Acquire(path)
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, HeldError{Path: path, PID: os.Getpid()}, *held)
	require.Equal(t, path+" is locked by another process", (&HeldError{Path: path}).Error())

	require.NoError(t, first.Close())
	second, err := Acquire(path)
	require.NoError(t, err, "the one before let it go")
	require.NoError(t, second.Close())
}

// TestHoldersRemoveTheFile has two of them take turns: none gets the lock of a file that the other has removed.
func TestHoldersRemoveTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for range 20_000 {
				file, err := Acquire(path)
				if err != nil {
					assert.ErrorAs(t, err, new(*HeldError))
					continue
				}
				own, err := file.Stat()
				assert.NoError(t, err)
				there, err := os.Stat(path)
				if !assert.NoError(t, err) || !assert.True(t, os.SameFile(own, there)) {
					assert.NoError(t, file.Close())
					return
				}
				assert.NoError(t, errors.Join(os.Remove(path), file.Close()))
			}
		})
	}
	group.Wait()
}

func TestADirectoryCanBeKept(t *testing.T) {
	dir := t.TempDir()
	first, err := AcquireDir(dir)
	require.NoError(t, err)
	_, err = AcquireDir(dir)
	require.ErrorAs(t, err, new(*HeldError))
	require.NoError(t, first.Close())

	_, err = AcquireDir(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Acquire(filepath.Join(dir, "absent", "lock"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestTryAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Acquire(path)
	require.NoError(t, err)
	waiting, err := os.Open(path)
	require.NoError(t, err)
	require.ErrorAs(t, TryLock(waiting), new(*HeldError))
	require.NoError(t, first.Close())
	require.NoError(t, TryLock(waiting), "the same descriptor gets it later")
	require.ErrorAs(t, TryLock(func() *os.File {
		third, err := os.Open(path)
		require.NoError(t, err)
		t.Cleanup(func() { _ = third.Close() })
		return third
	}()), new(*HeldError))
	require.NoError(t, waiting.Close())
	require.Error(t, TryLock(waiting), "closed")
}
